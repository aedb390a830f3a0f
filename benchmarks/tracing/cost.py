"""CPU per unit of adapter and worker without tracing, with 1 % of the sessions traced and with all of them.

Each setting has an adapter and a worker of its own. They all run at the same time and share one core, so that
whatever else happens on the machine happens to all of them; clients and collectors have the other core.
Sessions speak in real time, one unit a second. There are several windows, with new sessions each time, since
a session is traced or not from its beginning. Ratios are taken within a window, against tracing switched off;
of all figures the median.
"""

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.adapter.overload import UNBOUNDED
from benchmarks.adapter.report import Goal, Report
from benchmarks.load.client import text_frame
from benchmarks.load.crowd import Crowd
from benchmarks.load.payload import APPEND, PCM, append
from benchmarks.load.processes import TESTED_CPU, Process, adapter, running
from benchmarks.tracing.settings import METRICS, NOTHING, sampled

RESULTS: Final = Path(__file__).parent / "results"
SESSIONS: Final = 32
MODEL_SESSIONS: Final = 6
WARM_UP_S: Final = 2.0
IN_TIME: Final = 0.9
"""Share of units that has to be answered while a window is measured."""

MOST_TRIES: Final = 5
OFF: Final = "tracing off"
FEW: Final = "1 %"
ALL: Final = "100 %"

BUDGET_US: Final = 500.0
"""What 4 spans and 12 records of a traced unit may cost both processes together."""

WITH_MODEL: Final = 1.05
"""What tracing may cost where a model does what users come for."""

UNTRACED_US: Final = 150.0
"""What it may cost where hardly anything is traced."""


@dataclass(frozen=True)
class Worker:
    """What runs behind the adapter, and what clients say to it in every unit."""

    command: tuple[str, ...]
    unit: bytes


SCRIPTED: Final = Worker(("tests.support.scripted_worker", "--script", "talk"), APPEND)
SHIPPED: Final = Worker(("antiphon.cli", "worker", "--log-level", "warning"), append(bytes(len(PCM))))
"""Hears silence, so that it listens in every unit: what it says to noise is never the same twice."""


@dataclass(frozen=True)
class Pair:
    """Adapter and worker with one setting."""

    adapter: Process
    worker: Process

    def cpu_s(self) -> tuple[float, float]:
        """What each has used so far."""
        return self.adapter.cpu_s(), self.worker.cpu_s()


@dataclass(frozen=True)
class Window:
    """One setting for a while: CPU-microseconds per unit of each process."""

    adapter_us: float
    worker_us: float

    @property
    def both_us(self) -> float:
        """Of both processes."""
        return self.adapter_us + self.worker_us


@dataclass
class Setting:
    """One way to trace, and what was found with it."""

    name: str
    share: float | None
    """Of the sessions; None for no collector at all."""
    variables: Mapping[str, str]
    windows: list[Window] = field(default_factory=list)
    units: int = 0
    """Answered in all, also while nothing was measured."""
    spans: int = 0
    """That the collector got, of every kind."""


def settings(*, all_of_them: bool) -> list[Setting]:
    """Those that are compared, or only the two ends."""
    found = [Setting(OFF, None, METRICS), Setting(ALL, 1.0, {})]
    if all_of_them:
        found[:0] = [Setting("no telemetry", None, NOTHING)]
        found.insert(2, Setting(FEW, 0.01, {}))
    return found


async def window(pair: Pair, setting: Setting, unit: bytes, sessions: int, seconds: float) -> Window | None:
    """Lets `sessions` speak for so long; None if too few units were answered to call it real time."""
    crowd = Crowd(pair.adapter.port, text_frame(unit))
    await crowd.fill(sessions)
    crowd.active = sessions
    crowd.begin()
    warm_up = await crowd.measure(WARM_UP_S)
    before = pair.cpu_s()
    tally = await crowd.measure(seconds)
    after = pair.cpu_s()
    await crowd.leave()
    setting.units += warm_up.good + tally.good
    if tally.good < IN_TIME * sessions * seconds:
        return None
    us = [(end - start) / tally.good * 1e6 for start, end in zip(before, after, strict=True)]
    return Window(*us)


async def _together(
    pairs: Mapping[str, Pair], chosen: Sequence[Setting], worker: Worker, sessions: int, seconds: float
) -> list[Window]:
    """One window of all settings at the same time, again if the machine had too much else to do."""
    for _ in range(MOST_TRIES):
        found = await asyncio.gather(
            *(window(pairs[each.name], each, worker.unit, sessions, seconds) for each in chosen)
        )
        good = [one for one in found if one is not None]
        if len(good) == len(chosen):
            return good
    raise SystemExit("Too few units were answered in time: too much else runs on this machine.")


async def compare(
    chosen: Sequence[Setting], worker: Worker, sessions: int, windows: int, seconds: float
) -> None:
    """Fills every setting, each with so many sessions."""
    with ExitStack() as collectors:
        listening: dict[str, Process] = {}
        with ExitStack() as stack:
            pairs = {}
            for setting in chosen:
                variables = setting.variables
                if setting.share is not None:
                    collector = collectors.enter_context(running("benchmarks.tracing.collector"))
                    listening[setting.name] = collector
                    variables = sampled(f"http://{collector.address}", setting.share)
                command = (*worker.command, "--listen", "127.0.0.1:0", "--slots", str(sessions))
                behind = stack.enter_context(running(*command, cpu=TESTED_CPU, variables=variables))
                front = stack.enter_context(adapter(behind.address, *UNBOUNDED, variables=variables))
                pairs[setting.name] = Pair(front, behind)
            for _ in range(windows):
                for setting, found in zip(
                    chosen, await _together(pairs, chosen, worker, sessions, seconds), strict=True
                ):
                    setting.windows.append(found)
        for setting in chosen:
            if setting.name in listening:
                setting.spans = listening[setting.name].ask()


def ratios(chosen: Sequence[Setting], name: str) -> list[float]:
    """What a unit costs of what it costs without tracing, in each window."""
    return [own.both_us / base.both_us for own, base in _pairs(chosen, name)]


def ratio(chosen: Sequence[Setting], name: str) -> float:
    """The median of them."""
    return statistics.median(ratios(chosen, name))


def added_us(chosen: Sequence[Setting], name: str) -> float:
    """What a unit costs more than without tracing, the median."""
    return statistics.median(own.both_us - base.both_us for own, base in _pairs(chosen, name))


def _pairs(chosen: Sequence[Setting], name: str) -> list[tuple[Window, Window]]:
    windows = {setting.name: setting.windows for setting in chosen}
    return list(zip(windows[name], windows[OFF], strict=True))


def rows(behind: str, chosen: Sequence[Setting]) -> list[tuple[object, ...]]:
    """The table: one line for each setting."""
    lines: list[tuple[object, ...]] = []
    for setting in chosen:
        found = ratios(chosen, setting.name)
        lines.append(
            (
                f"{setting.name}, {behind}",
                statistics.median(one.adapter_us for one in setting.windows),
                statistics.median(one.worker_us for one in setting.windows),
                statistics.median(found),
                f"{min(found):.2f} to {max(found):.2f}",
                setting.spans / setting.units,
            )
        )
    return lines


async def measure(is_short: bool) -> Report:
    """The table."""
    windows, seconds = (1, 2.0) if is_short else (12, 10.0)
    scripted, shipped = settings(all_of_them=True), settings(all_of_them=False)
    await compare(scripted, SCRIPTED, SESSIONS, windows, seconds)
    await compare(shipped, SHIPPED, MODEL_SESSIONS, (windows + 1) // 2, seconds)
    return Report(
        "cost",
        f"CPU per unit of {SESSIONS} sessions in real time, of {MODEL_SESSIONS} with antiphon-mini",
        ("tracing", "adapter, us", "worker, us", "of tracing off", "spread", "spans per unit"),
        [*rows("no model", scripted), *rows("antiphon-mini", shipped)],
        (
            Goal("100 % over off, with antiphon-mini", ratio(shipped, ALL), WITH_MODEL),
            Goal("1 % over off, no model", ratio(scripted, FEW), WITH_MODEL),
            Goal("us that 100 % adds to a unit", added_us(scripted, ALL), BUDGET_US),
            Goal("us that 1 % adds", added_us(scripted, FEW), UNTRACED_US),
        ),
    )
