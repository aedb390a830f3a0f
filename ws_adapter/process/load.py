"""Admission control and load shedding by CPU, event loop lag and bytes in flight."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ws_adapter.process.clock import Clock, Timer

SAMPLE_S: Final = 0.5
SAMPLES: Final = 7
"""The number of samples in the averages of CPU and lag."""

WINDOW_S: Final = SAMPLE_S * (SAMPLES - 1)
"""Seconds over which CPU and lag are averaged."""

DROPPING_LAG: Final = 2.0
"""The multiple of the lag limit at which new input is dropped: a unit needs about six passes of the event
loop, so its answer would be late."""

START_CPU: Final = 0.0005
"""The assumed load of a new session in cores, until it is measured."""


@dataclass(frozen=True)
class LoadLimits:
    """Limits of the load; 0 switches a limit off."""

    max_cpu: float
    """The CPU use in cores beyond which no new session is admitted."""

    max_loop_lag_s: float
    """The mean event loop lag in seconds beyond which no new session is admitted."""

    max_inflight_bytes: int
    """The bytes of input and output of all sessions beyond which new input is dropped undecoded."""


@dataclass(frozen=True, slots=True)
class _Sample:
    time: float
    cpu: float
    lag: float


class Load:
    """The load of this process: samples of CPU and lag twice a second, and the bytes that sessions hold."""

    def __init__(
        self, limits: LoadLimits, clock: Clock, cpu_time: Callable[[], float] = time.process_time
    ) -> None:
        self.is_draining = False
        """Whether the process drains, and admits no new session."""
        self.inflight_bytes = 0
        """The bytes that all sessions hold; each session adds and subtracts its own."""
        self.half_bytes = limits.max_inflight_bytes / 2 or math.inf
        """The bytes in flight from which on only sessions with a slot may add more."""
        self.is_late = False
        """Whether the event loop lags so much now that new input must be dropped."""
        self._limits = limits
        self._clock = clock
        self._cpu_time = cpu_time
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES)
        self._starts: deque[float] = deque()
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to sample, if any limit is set."""
        if self._limits.max_cpu or self._limits.max_loop_lag_s:
            self._sample(self._clock.now())

    def use(self, limits: LoadLimits) -> None:
        """Replace the limits of CPU and lag; the bound of bytes in flight stays."""
        self._limits = limits
        if self._timer is None:
            self.start()

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def cpu(self) -> float:
        """The cores in use, as a mean over `WINDOW_S`. Time before the start counts as idle."""
        if not self._samples:
            return 0.0
        first, last = self._samples[0], self._samples[-1]
        return (last.cpu - first.cpu) / max(WINDOW_S, last.time - first.time)

    @property
    def loop_lag_s(self) -> float:
        """The mean lag of the event loop over `WINDOW_S`, in seconds."""
        return sum(sample.lag for sample in self._samples) / len(self._samples) if self._samples else 0.0

    @property
    def is_full(self) -> bool:
        """Whether so many bytes are in flight that new input must be dropped."""
        return self.inflight_bytes >= 2 * self.half_bytes

    def admit(self) -> bool:
        """Return whether a new session may be admitted; if so, its expected load is counted."""
        if self.is_full:
            return False
        now, limits = self._clock.now(), self._limits
        while self._starts and self._starts[0] < now - WINDOW_S:
            self._starts.popleft()
        expected = self.cpu + START_CPU * len(self._starts)
        if limits.max_cpu and expected >= limits.max_cpu:
            return False
        if limits.max_loop_lag_s and self.loop_lag_s >= limits.max_loop_lag_s:
            return False
        self._starts.append(now)
        return True

    def _sample(self, due: float) -> None:
        now = self._clock.now()
        lag = now - due
        self._samples.append(_Sample(now, self._cpu_time(), lag))
        self.is_late = 0 < DROPPING_LAG * self._limits.max_loop_lag_s <= lag
        due = now + SAMPLE_S
        self._timer = self._clock.call_at(due, lambda: self._sample(due))
