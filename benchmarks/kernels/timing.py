"""Processor time of calls, measured in turn, so that other load on the machine affects all of them alike."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

CALLS_S: Final = 0.05
"""About what the calls of one round take together."""


def medians(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Return seconds of this thread that each call takes, the median of the rounds; the first does not
    count."""
    for call in calls:
        call()
    counts = [max(1, round(CALLS_S / _seconds(call, 1))) for call in calls]
    found = [
        [_seconds(call, count) for call, count in zip(calls, counts, strict=True)] for _ in range(rounds)
    ]
    return [statistics.median(times) for times in zip(*found, strict=True)]


def _seconds(call: Callable[[], object], count: int) -> float:
    begin = time.thread_time()
    for _ in range(count):
        call()
    return (time.thread_time() - begin) / count
