"""When the adapter is too busy: for new sessions, and for new input."""

import asyncio
from collections.abc import Callable

import pytest

from tests.ws_adapter.support.stage import ManualClock
from ws_adapter.process.clock import Timer
from ws_adapter.process.load import SAMPLE_S, SAMPLES, START_CPU, WINDOW_S, Load, LoadLimits


class Busy:
    """A process whose use of the CPU is set by hand, under a `Load` that watches it."""

    def __init__(self, max_cpu: float = 0.5, max_loop_lag_s: float = 0.25, max_bytes: int = 1000) -> None:
        self.clock = ManualClock()
        self._used = 0.0
        self._since = self.clock.now()
        self._cores = 0.0
        self.load = Load(LoadLimits(max_cpu, max_loop_lag_s, max_bytes), self.clock, self._cpu_time)
        self.load.start()

    def _cpu_time(self) -> float:
        return self._used + (self.clock.now() - self._since) * self._cores

    def use(self, cores: float) -> None:
        self._used, self._since, self._cores = self._cpu_time(), self.clock.now(), cores


async def test_cpu_is_a_mean_over_the_last_seconds() -> None:
    busy = Busy()
    assert busy.load.cpu == 0
    busy.use(0.4)
    await busy.clock.advance(10)
    assert busy.load.cpu == pytest.approx(0.4)
    busy.use(1.0)
    await busy.clock.advance(WINDOW_S / 2)
    assert busy.load.cpu == pytest.approx(0.7)


async def test_busy_process_takes_no_session_until_it_is_less_busy() -> None:
    busy = Busy()
    busy.use(1.0)
    await busy.clock.advance(2 * SAMPLE_S)
    assert busy.load.cpu == pytest.approx(2 * SAMPLE_S / WINDOW_S)
    assert busy.load.admit(), "after a moment of work"
    busy.use(0.6)
    await busy.clock.advance(10)
    assert not busy.load.admit()
    busy.use(0.3)
    await busy.clock.advance(WINDOW_S)
    assert busy.load.admit()


async def test_crowd_is_counted_before_it_can_be_measured() -> None:
    busy = Busy()
    admitted = sum(busy.load.admit() for _ in range(5000))
    assert admitted == pytest.approx(0.5 / START_CPU, abs=1)
    await busy.clock.advance(WINDOW_S + SAMPLE_S)
    assert busy.load.admit(), "what they really cost is known by now: nothing"


class LateClock:
    """Runs a timer only when it is told to, as late as it is told."""

    def __init__(self) -> None:
        self.time = 0.0
        self.due = (0.0, lambda: None)

    def now(self) -> float:
        return self.time

    def unix(self) -> float:
        return self.time

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        self.due = (when, callback)
        return asyncio.get_running_loop().call_soon(lambda: None)

    def fire(self, late_s: float) -> None:
        when, callback = self.due
        self.time = when + late_s
        callback()


async def test_late_event_loop_takes_no_session_and_a_very_late_one_no_input() -> None:
    clock = LateClock()
    load = Load(LoadLimits(0.5, 0.25, 0), clock, lambda: 0.0)
    load.start()
    for _ in range(SAMPLES):
        clock.fire(late_s=0.2)
    assert load.loop_lag_s == pytest.approx(0.2)
    assert load.admit()
    for _ in range(SAMPLES):
        clock.fire(late_s=0.3)
    assert not load.admit()
    for late_s, is_late in ((0.49, False), (0.5, True), (0.1, False)):
        clock.fire(late_s)
        assert load.is_late is is_late


async def test_nothing_is_sampled_where_no_limit_is_set_or_after_the_end() -> None:
    busy = Busy(max_cpu=0, max_loop_lag_s=0)
    busy.use(9)
    await busy.clock.advance(10)
    assert busy.clock.timers == 0
    assert busy.load.admit()
    stopped = Busy()
    await stopped.clock.advance(3)
    stopped.load.stop()
    assert stopped.clock.timers == 0


async def test_new_input_is_dropped_while_all_bytes_are_in_flight() -> None:
    """Half of them is for those who have a slot; there may be no bound."""
    load = Busy(max_bytes=1000).load
    assert load.half_bytes == 500
    for inflight_bytes, is_full in ((999, False), (1000, True), (400, False)):
        load.inflight_bytes = inflight_bytes
        assert load.is_full is is_full
        assert load.admit() is not is_full
    load = Busy(max_bytes=0).load
    load.inflight_bytes = 10**12
    assert not load.is_full
    assert load.inflight_bytes < load.half_bytes
