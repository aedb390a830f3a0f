"""Layered layout of a graph whose arrows all point down: positions of boxes and waypoints of arrows.

Each box has a row. An arrow over several rows gets a waypoint in each row between, so that it runs between
the boxes. The order in a row minimises crossings; then the positions are moved to straighten the arrows.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Final

Graph = Mapping[str, set[str]]
Arrow = tuple[str, str]
Point = tuple[float, int]
"""x in the unit of the widths, and the number of a row."""
Spot = str | tuple[str, str, int]
"""A box, or a waypoint: the two ends of an arrow and a row."""

GAP: Final = 22.0
"""The least distance between two boxes of a row."""
PASSAGE: Final = 14.0
"""The least distance between a waypoint and its neighbour."""
SWEEPS: Final = 24
STIFFNESS: Final = 8
"""The weight of links between waypoints, which keep an arrow straight; links to boxes weigh 1."""


@dataclass(frozen=True)
class Layout:
    """The positions of boxes and the paths of arrows."""

    boxes: dict[str, Point]
    """The centre of each box."""
    arrows: dict[Arrow, list[Point]]
    """The points on each arrow's path, its two boxes included."""


def transitive_reduction(graph: Graph) -> dict[str, set[str]]:
    """Return the transitive reduction of an acyclic graph: without arrows that a longer path implies."""
    reached: dict[str, set[str]] = {}
    for node in TopologicalSorter(graph).static_order():
        reached[node] = set().union(*({end} | reached[end] for end in graph.get(node, ())))
    return {
        node: {end for end in ends if not any(end in reached[other] for other in ends)}
        for node, ends in graph.items()
    }


def laid_out(graph: Graph, rows: Sequence[Sequence[str]], widths: Mapping[str, float]) -> Layout:
    """Return the layout of a graph whose arrows lead from earlier rows to later ones."""
    row_of = {node: i for i, row in enumerate(rows) for node in row}
    spots: list[list[Spot]] = [list(row) for row in rows]
    links: dict[Spot, list[Spot]] = defaultdict(list)
    chains: dict[Arrow, list[Spot]] = {}
    for start in sorted(graph):
        for end in sorted(graph[start]):
            passed: list[Spot] = [(start, end, i) for i in range(row_of[start] + 1, row_of[end])]
            for spot, i in zip(passed, range(row_of[start] + 1, row_of[end]), strict=True):
                spots[i].append(spot)
            chain: list[Spot] = [start, *passed, end]
            chains[start, end] = chain
            for upper, lower in itertools.pairwise(chain):
                links[upper].append(lower)
                links[lower].append(upper)
    spots = _ordered(spots, links)
    x = _straightened(spots, links, widths)
    rows_of = {spot: i for i, row in enumerate(spots) for spot in row}
    return Layout(
        {node: (x[node], row_of[node]) for node in row_of},
        {arrow: [(x[spot], rows_of[spot]) for spot in chain] for arrow, chain in chains.items()},
    )


def _ordered(rows: list[list[Spot]], links: Mapping[Spot, list[Spot]]) -> list[list[Spot]]:
    """Return the rows in an order with few crossings, by barycentre sweeps down and up."""
    best, fewest = rows, _crossings(rows, links)
    rows = [list(row) for row in rows]
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for i in range(len(rows)) if down else reversed(range(len(rows))):
            beside = i - 1 if down else i + 1
            if 0 <= beside < len(rows):
                place = {spot: n for n, spot in enumerate(rows[beside])}
                own = {spot: n * len(rows[beside]) / len(rows[i]) for n, spot in enumerate(rows[i])}
                rows[i].sort(key={spot: _middle(spot, links, place, own) for spot in rows[i]}.__getitem__)
        crossings = _crossings(rows, links)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    return best


def _middle(
    spot: Spot, links: Mapping[Spot, list[Spot]], place: Mapping[Spot, int], own: Mapping[Spot, float]
) -> float:
    near = [place[other] for other in links.get(spot, ()) if other in place]
    return sum(near) / len(near) if near else own[spot]


def _crossings(rows: Sequence[Sequence[Spot]], links: Mapping[Spot, list[Spot]]) -> int:
    found = 0
    for upper, lower in itertools.pairwise(rows):
        place = {spot: n for n, spot in enumerate(lower)}
        ends = [place[other] for spot in upper for other in _by_place(place, links.get(spot, ()))]
        found += sum(a > b for i, a in enumerate(ends) for b in ends[i + 1 :])
    return found


def _by_place(place: Mapping[Spot, int], spots: Sequence[Spot]) -> list[Spot]:
    """Return the `spots` that have a place, ordered by place."""
    return sorted((spot for spot in spots if spot in place), key=place.__getitem__)


def _straightened(
    rows: Sequence[Sequence[Spot]], links: Mapping[Spot, list[Spot]], widths: Mapping[str, float]
) -> dict[Spot, float]:
    """Return centres as near to the neighbours' as the order and the widths allow."""
    x: dict[Spot, float] = {}
    for row in rows:
        right = 0.0
        for spot, least in zip(row, _distances(row, widths), strict=True):
            x[spot] = right = right + least
        middle = (x[row[0]] + x[row[-1]]) / 2
        x.update({spot: x[spot] - middle for spot in row})
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [_pulled(spot, links, x) for spot in row]
            x.update(zip(row, _apart(wanted, _distances(row, widths)), strict=True))
    return x


def _pulled(spot: Spot, links: Mapping[Spot, list[Spot]], x: Mapping[Spot, float]) -> float:
    """Return the weighted mean x of a spot's neighbours; links within one arrow weigh `STIFFNESS`."""
    pulls = [
        (STIFFNESS if isinstance(spot, tuple) and isinstance(other, tuple) else 1, x[other])
        for other in links.get(spot, ())
    ]
    return sum(pull * at for pull, at in pulls) / sum(pull for pull, _ in pulls) if pulls else x[spot]


def _distances(row: Sequence[Spot], widths: Mapping[str, float]) -> list[float]:
    """Return the least distance between the centre of each spot and that of its left neighbour."""
    found = [0.0]
    for left, right in itertools.pairwise(row):
        gap = GAP if isinstance(left, str) and isinstance(right, str) else PASSAGE
        halves = sum(widths[spot] / 2 for spot in (left, right) if isinstance(spot, str))
        found.append(gap + halves)
    return found


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _apart(wanted: Sequence[float], distances: Sequence[float]) -> list[float]:
    """Return positions with the least squared distance from `wanted` that keep `distances`."""
    offsets = [sum(distances[: i + 1]) for i in range(len(distances))]
    blocks: list[list[float]] = []
    for want, offset in zip(wanted, offsets, strict=True):
        blocks.append([want - offset])
        while len(blocks) > 1 and _mean(blocks[-2], 0) > _mean(blocks[-1], 0):
            last = blocks.pop()
            blocks[-1] += last
    flat = [_mean(block, 0) for block in blocks for _ in block]
    return [start + offset for start, offset in zip(flat, offsets, strict=True)]
