"""The path of units through a process, read from its calls."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.walk.conversation import Unit

SETTLED_S: Final = 0.6
"""The seconds after which a sent unit causes no further work."""

USUAL: Final = 0.5
"""The share of units that must reach a module for it to be on the path."""


class Call(NamedTuple):
    """A call of one of Antiphon's functions; `is_root` if none of them is its caller."""

    at: float
    thread: str
    is_root: bool
    module: str
    function: str


@dataclass(frozen=True)
class Span:
    """A period in monotonic seconds."""

    begin: float
    end: float

    def __contains__(self, call: Call) -> bool:
        return self.begin <= call.at < self.end


@dataclass(frozen=True)
class UnitPath:
    """Modules in the order in which units reach them."""

    modules: tuple[str, ...]
    calls: float
    """The number of calls of Antiphon's functions per unit."""
    handovers: float
    """The number of times that a unit moves to another thread or another iteration of an event loop."""


def read(file: Path) -> list[Call]:
    """Return the calls that `traced` has written."""
    return [Call(*row) for row in json.loads(file.read_text())]


def span(unit: Unit) -> Span:
    """Return the period in which a process works on a unit of its only session."""
    return Span(unit.sent, min(unit.next_sent, unit.sent + SETTLED_S))


def caused(calls: Sequence[Call], units: Sequence[Unit], idle: Sequence[Span]) -> list[list[Call]]:
    """Return the calls for each unit, without background work such as clocks and probes.

    A group of `call_groups` is background work if all its functions are also called in the idle spans.
    """
    at_rest = {(call.module, call.function) for call in calls if any(call in span for span in idle)}
    return [
        [
            call
            for group in call_groups([call for call in calls if call in span(unit)])
            if any((call.module, call.function) not in at_rest for call in group)
            for call in group
        ]
        for unit in units
    ]


def call_groups(calls: Sequence[Call]) -> list[list[Call]]:
    """Group the calls of each thread: a root call begins a group."""
    found: list[list[Call]] = []
    current: dict[str, list[Call]] = {}
    for call in calls:
        if call.is_root or call.thread not in current:
            current[call.thread] = []
            found.append(current[call.thread])
        current[call.thread].append(call)
    return found


def parted(calls: Sequence[Call], answer: str) -> tuple[list[Call], list[Call]]:
    """Split the calls before the first root call of the module `answer`."""
    for i, call in enumerate(calls):
        if call.is_root and call.module == answer:
            return list(calls[:i]), list(calls[i:])
    return list(calls), []


def unit_path(units: Sequence[Sequence[Call]]) -> UnitPath:
    """Return the path of most of these units."""
    passed = Counter(module for unit in units for module in {call.module for call in unit})
    usual = {module for module, count in passed.items() if count >= USUAL * len(units)}
    firsts: dict[str, float] = {}
    for unit in units:
        order: dict[str, int] = {}
        for call in unit:
            order.setdefault(call.module, len(order))
        for module in usual & order.keys():
            firsts[module] = firsts.get(module, 0.0) + order[module] / passed[module]
    return UnitPath(
        tuple(sorted(usual, key=lambda module: firsts[module])),
        sum(len(unit) for unit in units) / max(1, len(units)),
        sum(call.is_root for unit in units for call in unit) / max(1, len(units)),
    )
