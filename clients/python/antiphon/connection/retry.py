"""Retries of connecting: their timing and their number."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from antiphon.errors import AntiphonError

_Opened = TypeVar("_Opened")

RETRIED: Final = frozenset({"http_429", "http_503", "queue_full", "service_unavailable"})
"""The reasons of temporary refusals: too many attempts, no room, no worker that is ready."""


@dataclass(frozen=True)
class Retry:
    """The retry policy of `connect` for conversations that the server refuses temporarily.

    After attempt n the client waits `first_delay_s` * 2^(n-1), at most `longest_delay_s`, times a random
    factor from 0.5 to 1. If the server sends `Retry-After`, the client waits at least that long, plus a
    random part of `first_delay_s`. No attempt begins later than `deadline_s` after the call; a running
    attempt, which may wait in the queue, is not cancelled. The refusal of the last attempt is raised.

    Raises ValueError for values out of range.
    """

    deadline_s: float = 60.0
    """The longest time in seconds from the call to the last attempt, above 0."""
    first_delay_s: float = 0.5
    """The delay in seconds before the second attempt, above 0."""
    longest_delay_s: float = 10.0
    """The longest delay in seconds, at least `first_delay_s`."""
    reasons: frozenset[str] = RETRIED
    """The values of `AntiphonError.reason` that are retried."""

    def __post_init__(self) -> None:
        for name in ("deadline_s", "first_delay_s"):
            value = getattr(self, name)
            if not 0.0 < value < float("inf"):
                raise ValueError(f"`{name}` of a Retry is a number above 0, not {value!r}.")
        if not self.first_delay_s <= self.longest_delay_s < float("inf"):
            raise ValueError(
                f"`longest_delay_s` of a Retry is at least `first_delay_s`, not {self.longest_delay_s!r}."
            )
        if isinstance(self.reasons, str):
            raise ValueError("`reasons` of a Retry is a set of strings, not one string.")

    def delay_s(self, attempts: int, refusal: AntiphonError) -> float | None:
        """Return the delay in seconds after `attempts` attempts, or None if the refusal is final."""
        if refusal.reason not in self.reasons:
            return None
        # An exponent above 30 exceeds every bound, and a very large one overflows a float.
        backoff_s = min(self.longest_delay_s, self.first_delay_s * 2.0 ** min(attempts - 1, 30))
        backoff_s *= random.uniform(0.5, 1.0)
        if refusal.retry_after_s is None:
            return backoff_s
        return max(backoff_s, refusal.retry_after_s + random.uniform(0.0, self.first_delay_s))


async def retrying(retry: Retry | None, attempt: Callable[[], Awaitable[_Opened]]) -> _Opened:
    """Return the result of the first `attempt` that is not refused. Raises the last refusal."""
    begin = time.monotonic()
    attempts = 0
    while True:
        try:
            return await attempt()
        except AntiphonError as refusal:
            attempts += 1
            delay_s = retry.delay_s(attempts, refusal) if retry else None
            if retry is None or delay_s is None or time.monotonic() - begin + delay_s > retry.deadline_s:
                raise
        await asyncio.sleep(delay_s)
