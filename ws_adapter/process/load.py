"""Load shedding: whether this process takes new sessions, and whether it takes input at all."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ws_adapter.process.clock import Clock, Timer

SAMPLE_S: Final = 0.5
SAMPLES: Final = 7
"""CPU and lag are means over the time between so many samples."""

WINDOW_S: Final = SAMPLE_S * (SAMPLES - 1)
"""Seconds over which CPU and lag are averaged."""

DROPPING_LAG: Final = 2.0
"""At so many times the lag at which no new session is taken, new input is dropped: a unit needs half a dozen
turns of the event loop, so its answer would come too late."""

NEWCOMER_CPU: Final = 0.0005
"""What a session that has just come in will cost, in cores: until it is measured it counts as this."""


@dataclass(frozen=True)
class LoadLimits:
    """0 switches a limit off."""

    max_cpu: float
    """Cores that the process may use before it takes no new session."""

    max_loop_lag_s: float
    """How late the event loop may be on average before it takes no new session."""

    max_inflight_bytes: int
    """Input and output of all sessions, together, before new input is dropped undecoded."""


@dataclass(frozen=True, slots=True)
class _Sample:
    time: float
    cpu: float
    lag: float


class Load:
    """Samples the process twice a second between `start` and `stop`, and adds up what sessions hold."""

    def __init__(
        self, limits: LoadLimits, clock: Clock, cpu_time: Callable[[], float] = time.process_time
    ) -> None:
        self.is_draining = False
        """Whether the process is about to end, and takes nobody new."""
        self.inflight_bytes = 0
        """What all sessions hold: each adds what it takes and subtracts what it lets go."""
        self.half_bytes = limits.max_inflight_bytes / 2 or math.inf
        """From here on what may be in flight is for sessions that have a slot."""
        self.is_late = False
        """Whether the event loop is so late now that new input has to be dropped."""
        self._limits = limits
        self._clock = clock
        self._cpu_time = cpu_time
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES)
        self._newcomers: deque[float] = deque()
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to sample, if there is anything to watch."""
        if self._limits.max_cpu or self._limits.max_loop_lag_s:
            self._sample(self._clock.now())

    def use(self, limits: LoadLimits) -> None:
        """Take other limits of CPU and lag; the bound of bytes in flight stays."""
        self._limits = limits
        if self._timer is None:
            self.start()

    def stop(self) -> None:
        """Leave no timer behind."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def cpu(self) -> float:
        """Return the cores in use, as a mean over `WINDOW_S`. Time before the start counts as idle."""
        if not self._samples:
            return 0.0
        first, last = self._samples[0], self._samples[-1]
        return (last.cpu - first.cpu) / max(WINDOW_S, last.time - first.time)

    @property
    def loop_lag_s(self) -> float:
        """How late timers ran, over the last seconds."""
        return sum(sample.lag for sample in self._samples) / len(self._samples) if self._samples else 0.0

    @property
    def is_full(self) -> bool:
        """Whether so much is in flight that new input has to be dropped."""
        return self.inflight_bytes >= 2 * self.half_bytes

    def admit(self) -> bool:
        """Return whether a new session may come in; if so, it is counted as one that will need its share."""
        if self.is_full:
            return False
        now, limits = self._clock.now(), self._limits
        while self._newcomers and self._newcomers[0] < now - WINDOW_S:
            self._newcomers.popleft()
        expected = self.cpu + NEWCOMER_CPU * len(self._newcomers)
        if limits.max_cpu and expected >= limits.max_cpu:
            return False
        if limits.max_loop_lag_s and self.loop_lag_s >= limits.max_loop_lag_s:
            return False
        self._newcomers.append(now)
        return True

    def _sample(self, due: float) -> None:
        now = self._clock.now()
        lag = now - due
        self._samples.append(_Sample(now, self._cpu_time(), lag))
        self.is_late = 0 < DROPPING_LAG * self._limits.max_loop_lag_s <= lag
        due = now + SAMPLE_S
        self._timer = self._clock.call_at(due, lambda: self._sample(due))
