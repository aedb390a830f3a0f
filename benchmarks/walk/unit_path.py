"""The way of units through a process, read from its calls."""

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
"""A module is on the way if at least so large a share of the units passes it."""


class Call(NamedTuple):
    """A call of one of our functions; `is_root` if none of our functions called it."""

    at: float
    thread: str
    is_root: bool
    module: str
    function: str


@dataclass(frozen=True)
class Span:
    """A stretch of time; monotonic seconds."""

    begin: float
    end: float

    def __contains__(self, call: Call) -> bool:
        return self.begin <= call.at < self.end


@dataclass(frozen=True)
class Way:
    """Modules in the order in which units reach them."""

    modules: tuple[str, ...]
    calls: float
    """The number of calls of our functions per unit."""
    handovers: float
    """The number of times that a unit moves to another thread or another turn of an event loop."""


def read(file: Path) -> list[Call]:
    """Return the calls that `traced` has written."""
    return [Call(*row) for row in json.loads(file.read_text())]


def span(unit: Unit) -> Span:
    """When something is done about a unit of a session that has the process to itself."""
    return Span(unit.sent, min(unit.next_sent, unit.sent + SETTLED_S))


def caused(calls: Sequence[Call], units: Sequence[Unit], idle: Sequence[Span]) -> list[list[Call]]:
    """Return what was called on behalf of each unit.

    Clocks, probes and what asks a worker how it is run all the time: turns of a thread in which nothing is
    called but what is also called while nobody talks to the process, in the spans of `idle`, are left out.
    """
    at_rest = {(call.module, call.function) for call in calls if any(call in span for span in idle)}
    return [
        [
            call
            for turn in turns([call for call in calls if call in span(unit)])
            if any((call.module, call.function) not in at_rest for call in turn)
            for call in turn
        ]
        for unit in units
    ]


def turns(calls: Sequence[Call]) -> list[list[Call]]:
    """Calls that follow from each other: those of a thread from one that nothing of ours has called on."""
    found: list[list[Call]] = []
    current: dict[str, list[Call]] = {}
    for call in calls:
        if call.is_root or call.thread not in current:
            current[call.thread] = []
            found.append(current[call.thread])
        current[call.thread].append(call)
    return found


def parted(calls: Sequence[Call], answer: str) -> tuple[list[Call], list[Call]]:
    """The calls before and after something begins in the module `answer` that nothing of ours has called."""
    for i, call in enumerate(calls):
        if call.is_root and call.module == answer:
            return list(calls[:i]), list(calls[i:])
    return list(calls), []


def way(units: Sequence[Sequence[Call]]) -> Way:
    """Return the way that most of these units have gone."""
    passed = Counter(module for unit in units for module in {call.module for call in unit})
    usual = {module for module, count in passed.items() if count >= USUAL * len(units)}
    firsts: dict[str, float] = {}
    for unit in units:
        order: dict[str, int] = {}
        for call in unit:
            order.setdefault(call.module, len(order))
        for module in usual & order.keys():
            firsts[module] = firsts.get(module, 0.0) + order[module] / passed[module]
    return Way(
        tuple(sorted(usual, key=lambda module: firsts[module])),
        sum(len(unit) for unit in units) / max(1, len(units)),
        sum(call.is_root for unit in units for call in unit) / max(1, len(units)),
    )
