"""One step of a load test: a fixed number of concurrent conversations for a fixed time."""

import asyncio
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from antiphon.audio.samples import Samples
from antiphon_command.bench.talker import (
    UNIT_S,
    Record,
    Talker,
    script,
)

MOST_MISSES: Final = 0.01
"""The share of units that may miss their deadline."""


@dataclass(frozen=True)
class Figures:
    """The results of one step of the load test; times are None if nothing was measured."""

    sessions: int
    units: int
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    first_audio_p50_ms: float | None
    first_audio_p95_ms: float | None
    misses: int
    dropped: int
    errors: int
    queued: int
    """The number of conversations that had to wait for a slot; above 0 nothing is measured."""

    @property
    def miss_share(self) -> float:
        """The share of units that missed their deadline."""
        return self.misses / self.units if self.units else 1.0

    @property
    def is_good(self) -> bool:
        """Whether every conversation had a slot, none had an error, and few enough units were late."""
        return not self.queued and not self.errors and self.miss_share < MOST_MISSES


async def measure(
    url: str, api_key: str | None, mode: str, recording: Samples, sessions: int, duration_s: float
) -> Figures:
    """Run `sessions` conversations, whose units are spread evenly over the second.

    Raises the errors of the SDK.
    """
    seconds, last = script(recording)
    talkers = [Talker(seconds, last, offset=i * len(seconds) // sessions) for i in range(sessions)]
    try:
        async with asyncio.TaskGroup() as opening:
            for talker in talkers:
                opening.create_task(talker.open(url, api_key, mode))
        queued = sum(talker.was_queued for talker in talkers)
        if not queued:
            begin = time.monotonic() + UNIT_S
            async with asyncio.TaskGroup() as talking:
                for i, talker in enumerate(talkers):
                    phase = i * UNIT_S / sessions
                    talking.create_task(talker.talk(begin + phase, max(1, round(duration_s / UNIT_S))))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        await asyncio.gather(*(talker.close() for talker in talkers), return_exceptions=True)
    record = Record()
    for talker in talkers:
        record += talker.record
    return _figures(sessions, record, queued)


def _figures(sessions: int, record: Record, queued: int) -> Figures:
    return Figures(
        sessions=sessions,
        units=record.units,
        p50_ms=_percentile(record.unit_s, 50),
        p90_ms=_percentile(record.unit_s, 90),
        p99_ms=_percentile(record.unit_s, 99),
        first_audio_p50_ms=_percentile(record.first_audio_s, 50),
        first_audio_p95_ms=_percentile(record.first_audio_s, 95),
        misses=record.misses,
        dropped=record.dropped,
        errors=len(record.errors),
        queued=queued,
    )


def _percentile(seconds: list[float], share: float) -> float | None:
    return round(float(np.percentile(seconds, share)) * 1000, 1) if seconds else None
