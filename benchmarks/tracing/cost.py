"""CPU time per unit of adapter and worker without tracing, with 1 % of the sessions traced and with all.

Without a model, each setting has an adapter and a scripted worker with sessions in real time. With the
shipped model, each setting has a worker with conversations of workload W. All settings run at the same time
and share one core, so that other load on the machine affects them equally; clients and collectors have the
other core. Each window has new sessions, because sampling is decided at the start of a session. Ratios
compare a setting with tracing off in the same window; the results are medians.
"""

import asyncio
import math
import statistics
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.adapter.overload import UNBOUNDED
from benchmarks.crowd.conversations import hold
from benchmarks.load.crowd import Crowd
from benchmarks.load.processes import TESTED_CPU, Process, adapter, running
from benchmarks.report import Goal, Report
from benchmarks.tracing.settings import METRICS, NOTHING, sampled

RESULTS: Final = Path(__file__).parent / "results"
MODEL_WARM_UP: Final = 3
"""The warm-up of each conversation of workload W, in units."""

WARM_UP_S: Final = 2.0
IN_TIME: Final = 0.9
"""The least share of units with an answer in time for a valid window."""

MOST_TRIES: Final = 5
NONE: Final = "no telemetry"
OFF: Final = "tracing off"
FEW: Final = "1 %"
ALL: Final = "100 %"


@dataclass(frozen=True)
class Scale:
    """The extent of a run. `seconds` is the length of a window."""

    sessions: int
    """Sessions of each setting without a model."""
    conversations: int
    """Conversations of workload W of each setting."""
    windows: int
    seconds: int


FULL: Final = Scale(sessions=32, conversations=8, windows=12, seconds=10)
SHORT: Final = Scale(sessions=10, conversations=4, windows=3, seconds=5)

SHARE_OF_UNIT: Final = 0.03
"""The goal: the largest CPU time that tracing all sessions may add, as a share of a unit of workload W."""

SCRIPTED: Final = ("tests.support.scripted_worker", "--script", "talk", "--listen", "127.0.0.1:0", "--slots")
SHIPPED: Final = ("benchmarks.crowd.worker", "--slots")


@dataclass(frozen=True)
class Pair:
    """The adapter and the worker of one setting."""

    adapter: Process
    worker: Process

    def cpu_s(self) -> tuple[float, float]:
        """Return the CPU-seconds of adapter and worker so far."""
        return self.adapter.cpu_s(), self.worker.cpu_s()


@dataclass(frozen=True)
class Window:
    """CPU-microseconds per unit of each process of one setting; 0 without an adapter."""

    adapter_us: float
    worker_us: float

    @property
    def both_us(self) -> float:
        """The sum of both processes."""
        return self.adapter_us + self.worker_us


@dataclass
class Setting:
    """One setting of tracing, and its results."""

    name: str
    share: float | None
    """The share of sampled sessions; None without tracing."""
    variables: Mapping[str, str]
    windows: list[Window] = field(default_factory=list)
    units: int = 0
    """The number of answered units, including those of warm-ups."""
    spans: int = 0
    """The number of spans of every kind that the collector received."""


def settings(*, without_telemetry: bool) -> list[Setting]:
    """Return the settings to compare, with one without metrics if `without_telemetry`."""
    traced = [Setting(OFF, None, METRICS), Setting(FEW, 0.01, {}), Setting(ALL, 1.0, {})]
    return [Setting(NONE, None, NOTHING), *traced] if without_telemetry else traced


async def window(pair: Pair, setting: Setting, sessions: int, seconds: float) -> Window | None:
    """Measure `sessions` sessions for `seconds`; return None if too few units were answered in time."""
    crowd = Crowd(pair.adapter.port)
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


async def conversations(
    worker: Process, setting: Setting, sessions: int, units: int, seed: int
) -> Window | None:
    """Hold conversations of workload W for `units` seconds; None if too few units were answered in time."""
    tally = await hold(worker, sessions, seed, MODEL_WARM_UP, units)
    setting.units += len(tally.units) + sessions * MODEL_WARM_UP
    if tally.misses > 1 - IN_TIME:
        return None
    return Window(0.0, tally.ms_per_unit(tally.spent.process) * 1000)


async def _together(
    chosen: Sequence[Setting], measure: Callable[[Setting], Awaitable[Window | None]]
) -> None:
    """Measure one window of all settings at the same time; repeat it if too few units were in time.

    Raises `SystemExit` after `MOST_TRIES` attempts.
    """
    for _ in range(MOST_TRIES):
        found = await asyncio.gather(*map(measure, chosen))
        good = [one for one in found if one is not None]
        if len(good) == len(chosen):
            for setting, one in zip(chosen, good, strict=True):
                setting.windows.append(one)
            return
    raise SystemExit("Too few units were answered in time. Reduce the other load on this machine.")


@contextmanager
def _collecting(chosen: Sequence[Setting]) -> Iterator[dict[str, Mapping[str, str]]]:
    """Run a collector for each traced setting; yield the variables by setting; count spans at the end."""
    with ExitStack() as stack:
        listening: dict[str, Process] = {}
        variables = {setting.name: setting.variables for setting in chosen}
        for setting in chosen:
            if setting.share is not None:
                collector = stack.enter_context(running("benchmarks.tracing.collector"))
                listening[setting.name] = collector
                variables[setting.name] = sampled(f"http://{collector.address}", setting.share)
        yield variables
        for setting in chosen:
            if setting.name in listening:
                setting.spans = listening[setting.name].ask()


async def compare(chosen: Sequence[Setting], sessions: int, windows: int, seconds: float) -> None:
    """Measure an adapter and a scripted worker with every setting, with `sessions` sessions each."""
    with _collecting(chosen) as variables, ExitStack() as stack:
        pairs = {}
        for name, told in variables.items():
            behind = stack.enter_context(running(*SCRIPTED, str(sessions), cpu=TESTED_CPU, variables=told))
            front = stack.enter_context(adapter(behind.address, *UNBOUNDED, variables=told))
            pairs[name] = Pair(front, behind)
        for _ in range(windows):
            await _together(chosen, lambda each: window(pairs[each.name], each, sessions, seconds))


async def compare_with_model(chosen: Sequence[Setting], sessions: int, windows: int, units: int) -> None:
    """Measure a worker with the shipped model with every setting, in conversations of workload W."""
    slots = str(sessions)
    with _collecting(chosen) as variables, ExitStack() as stack:
        workers = {
            name: stack.enter_context(running(*SHIPPED, slots, cpu=TESTED_CPU, variables=told))
            for name, told in variables.items()
        }
        for seed in range(windows):

            async def talk(setting: Setting, seed: int = seed) -> Window | None:
                return await conversations(workers[setting.name], setting, sessions, units, seed)

            await _together(chosen, talk)


def ratios(chosen: Sequence[Setting], name: str) -> list[float]:
    """Return the cost of a unit relative to the cost without tracing, in each window."""
    return [own.both_us / base.both_us for own, base in _pairs(chosen, name)]


def ratio(chosen: Sequence[Setting], name: str) -> float:
    """Return the median of `ratios`."""
    return statistics.median(ratios(chosen, name))


def added_us(chosen: Sequence[Setting], name: str) -> float:
    """Return the median CPU-microseconds that a setting adds to a unit, relative to tracing off."""
    return statistics.median(own.both_us - base.both_us for own, base in _pairs(chosen, name))


def unit_us(scripted: Sequence[Setting], shipped: Sequence[Setting]) -> float:
    """Return the CPU-microseconds of a unit of workload W with tracing off: adapter, service and model."""
    adapters = statistics.median(base.adapter_us for base, _ in _pairs(scripted, OFF))
    return adapters + statistics.median(base.worker_us for base, _ in _pairs(shipped, OFF))


def share_of_unit(scripted: Sequence[Setting], shipped: Sequence[Setting], name: str) -> float:
    """Return the CPU time that a setting adds to both processes, as a share of a unit of workload W."""
    return added_us(scripted, name) / unit_us(scripted, shipped)


def _pairs(chosen: Sequence[Setting], name: str) -> list[tuple[Window, Window]]:
    windows = {setting.name: setting.windows for setting in chosen}
    return list(zip(windows[name], windows[OFF], strict=True))


def rows(behind: str, chosen: Sequence[Setting]) -> list[tuple[object, ...]]:
    """Return the rows of the table: one for each setting."""
    lines: list[tuple[object, ...]] = []
    for setting in chosen:
        found = ratios(chosen, setting.name)
        lines.append(
            (
                f"{setting.name}, {behind}",
                statistics.median(one.adapter_us or math.nan for one in setting.windows),
                statistics.median(one.worker_us for one in setting.windows),
                statistics.median(found),
                f"{min(found):.2f} to {max(found):.2f}",
                setting.spans / setting.units,
            )
        )
    return lines


async def measure(is_short: bool) -> Report:
    """Return the table."""
    scale = SHORT if is_short else FULL
    scripted, shipped = settings(without_telemetry=True), settings(without_telemetry=False)
    await compare(scripted, scale.sessions, scale.windows, scale.seconds)
    await compare_with_model(shipped, scale.conversations, scale.windows, scale.seconds)
    few, all_of_them = (share_of_unit(scripted, shipped, name) for name in (FEW, ALL))
    return Report(
        "cost",
        f"CPU per unit of {scale.sessions} sessions without a model, and of {scale.conversations} "
        "conversations of workload W with antiphon-mini",
        ("tracing", "adapter, us", "worker, us", "of tracing off", "spread", "spans per unit"),
        [*rows("no model", scripted), *rows("workload W", shipped)],
        (Goal("share of a unit of workload W that tracing 100 % adds", all_of_them, SHARE_OF_UNIT),),
        f"A unit of workload W takes {unit_us(scripted, shipped) / 1000:.1f} ms of CPU in adapter and worker "
        f"together. Of that, metrics are {-share_of_unit(scripted, shipped, NONE):.1%}; tracing 1 % of the "
        f"sessions adds {few:.1%}, tracing all of them {all_of_them:.1%}.",
    )
