"""CPU time of calls, measured in turn, so that other load on the machine affects all of them equally."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

CALLS_S: Final = 0.05
"""The approximate time of the repeated calls of one function in a round."""


def medians(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Return the CPU time of each call in seconds: the median of `rounds` rounds after a warm-up call."""
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
