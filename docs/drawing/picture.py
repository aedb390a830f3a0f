"""The subpackages of a package as an SVG: boxes from top to bottom, and an arrow for each import.

An arrow is left out where a longer path leads to the same subpackage.
"""

from collections.abc import Mapping
from html import escape
from typing import Final

from docs.drawing.layers import Layers, Subpackages
from docs.drawing.layout import (
    Arrow,
    Point,
    laid_out,
    transitive_reduction,
)

ROW: Final = 68
BOX: Final = 32
MARGIN: Final = 24
LEGEND: Final = 56
LETTER: Final = 8.5
"""An upper bound for the width of a letter in the names of boxes."""
PADDING: Final = 9
PORTS: Final = 18.0
"""The distance between two arrows at the same box."""

_LEGEND: Final = "An arrow leads from a subpackage to one that it imports, unless a longer path leads there."
_LEGEND_WIDTH: Final = len(_LEGEND) * 6.6
_TINTS: Final = ("#eef6ee", "#fdf3e7", "#f3effa", "#eaf4f8")
"""Fill colours of boxes; subpackages of one folder share a colour."""
_STYLE: Final = """
    text { font: 14px ui-monospace, 'DejaVu Sans Mono', monospace; fill: #14213d; }
    .note { font: 13px system-ui, 'DejaVu Sans', sans-serif; fill: #475569; }
    .page { fill: #ffffff; }
    .box { fill: #f6f8fb; stroke: #33415c; stroke-width: 1.5; rx: 8; }
    .module { stroke-dasharray: 5 3; }
    .arrow { stroke: #33415c; stroke-width: 1.4; stroke-opacity: 0.75; fill: none; marker-end: url(#end); }
"""
_MARKER: Final = (
    '<defs><marker id="end" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0 10 5 0 10z" fill="#33415c"/></marker></defs>'
)


def picture(subpackages: Subpackages, table: Layers) -> str:
    """Return the SVG of a package's subpackages, in the rows of `table`."""
    widths = {
        subpackage: len(subpackages.label(subpackage)) * LETTER + 2 * PADDING
        for subpackage in subpackages.contents
    }
    layout = laid_out(transitive_reduction(subpackages.graph()), table, widths)
    edges = [
        x + side * widths[subpackage] / 2 for subpackage, (x, _) in layout.boxes.items() for side in (-1, 1)
    ]
    edges += [x for path in layout.arrows.values() for x, _ in path]
    width = max(max(edges) - min(edges), _LEGEND_WIDTH) + 2 * MARGIN
    height = 2 * MARGIN + (len(table) - 1) * ROW + LEGEND
    shift = (width - max(edges) - min(edges)) / 2
    boxes = {subpackage: (x + shift, row) for subpackage, (x, row) in layout.boxes.items()}
    arrows = {arrow: [(x + shift, row) for x, row in path] for arrow, path in layout.arrows.items()}
    tints = _tints(boxes)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}">',
            f"  <style>{_STYLE}  </style>",
            f"  {_MARKER}",
            f'  <rect class="page" width="{width:.0f}" height="{height}"/>',
            *(f'  <path class="arrow" d="{path}"/>' for path in _arrow_paths(boxes, arrows, widths)),
            *(
                _box(subpackages, subpackage, boxes[subpackage], widths[subpackage], tints.get(subpackage))
                for subpackage in sorted(boxes)
            ),
            f'  <text class="note" x="{MARGIN}" y="{height - 16}">{_LEGEND}</text>',
            "</svg>",
            "",
        ]
    )


def _tints(subpackages: Mapping[str, object]) -> dict[str, str]:
    """Return the fill colours of subpackages that share a folder."""
    outer = [subpackage.partition(".")[0] for subpackage in subpackages]
    shared = sorted({name for name in outer if outer.count(name) > 1})
    colours = {name: _TINTS[i % len(_TINTS)] for i, name in enumerate(shared)}
    return {
        subpackage: colours[name]
        for subpackage, name in zip(subpackages, outer, strict=True)
        if name in colours
    }


def _box(subpackages: Subpackages, subpackage: str, at: Point, width: float, tint: str | None) -> str:
    """Return a box with the name of its subpackage; the tooltip is the docstring's sentence."""
    label, (x, row) = subpackages.label(subpackage), at
    y = MARGIN + row * ROW
    kind = "box" if label.endswith("/") else "box module"
    style = f' style="fill: {tint}"' if tint else ""
    return (
        f"  <g><title>{escape(subpackages.sentence(subpackage))}</title>\n"
        f'    <rect class="{kind}" x="{x - width / 2:.1f}" y="{y}" width="{width:.1f}" height="{BOX}"'
        f"{style}/>\n"
        f'    <text x="{x:.1f}" y="{y + 21}" text-anchor="middle">{escape(label)}</text></g>'
    )


def _arrow_paths(
    boxes: Mapping[str, Point], arrows: Mapping[Arrow, list[Point]], widths: Mapping[str, float]
) -> list[str]:
    """Return the arrows as SVG paths; arrows at one box are side by side, in the order of their ends."""
    starts: dict[Arrow, float] = {}
    ends: dict[Arrow, float] = {}
    for subpackage, (x, _) in boxes.items():
        leaving = sorted(
            (arrow for arrow in arrows if arrow[0] == subpackage), key=lambda it: (arrows[it][1], it)
        )
        reaching = sorted(
            (arrow for arrow in arrows if arrow[1] == subpackage), key=lambda it: (arrows[it][-2], it)
        )
        for found, there in ((starts, leaving), (ends, reaching)):
            step = min(PORTS, (widths[subpackage] - 2 * PADDING) / max(1, len(there) - 1))
            found.update({arrow: x + (i - (len(there) - 1) / 2) * step for i, arrow in enumerate(there)})
    return [_arrow_path(arrows[arrow], starts[arrow], ends[arrow]) for arrow in sorted(arrows)]


def _arrow_path(points: list[Point], start: float, end: float) -> str:
    """Return an SVG path that bends between rows and is vertical within a row."""
    (_, first), *passed, (_, last) = points
    at, y = start, MARGIN + first * ROW + BOX
    parts = [f"M{at:.1f} {y}"]
    for x, row in [*passed, (end, last)]:
        top = MARGIN + row * ROW
        bend = (y + top) // 2
        parts.append(f"C{at:.1f} {bend} {x:.1f} {bend} {x:.1f} {top}")
        at, y = x, top + BOX
        if row != last:
            parts.append(f"V{y}")
    return " ".join(parts)
