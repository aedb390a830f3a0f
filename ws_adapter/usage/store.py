"""The usage of each account in a day, and the rule for taking more of its quota.

An account pays in advance. A session takes a slice of the quota, and the next slice before this one is spent;
at its end it returns the rest. Usage beyond a slice is booked even if it exceeds the quota.
"""

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from ws_adapter.process.clock import Clock
from ws_adapter.usage.tenant import Quota

DAY_S: Final = 86_400


@dataclass(frozen=True)
class Take:
    """A booking for an account. Times in milliseconds.

    `spent_*` are booked unconditionally. Negative ones return the rest of a slice, which counts only on the
    day `day` of that slice. `want_*` are booked as far as the quota allows.
    """

    account: str
    quota: Quota
    spent_ms: int = 0
    want_ms: int = 0
    spent_tokens: int = 0
    want_tokens: int = 0
    day: int = 0


@dataclass(frozen=True)
class Taken:
    """The granted part of a booking's `want_*`, on the day `day` (days since 1970, in UTC)."""

    day: int
    ms: int
    tokens: int


class UsageStore(Protocol):
    """A store of usage."""

    @property
    def is_away(self) -> bool:
        """Whether the store is unavailable now."""

    def start(self) -> None:
        """Start the store."""

    async def close(self) -> None:
        """Book pending usage, if the store is available. Harmless when repeated."""

    def take(self, take: Take) -> "asyncio.Future[Taken]":
        """Book usage exactly once, as soon as the store is available."""


class LocalUsageStore:
    """The usage store of a single adapter. A restart resets it."""

    is_away = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._day = 0
        self._used: dict[str, tuple[int, int]] = {}
        """Milliseconds and tokens of each account with a quota today."""

    def start(self) -> None:
        """Do nothing: there is no task to start."""

    async def close(self) -> None:
        """Do nothing: there is no task to stop."""

    def take(self, take: Take) -> "asyncio.Future[Taken]":
        today = int(self._clock.unix() // DAY_S)
        if today != self._day:
            self._day, self._used = today, {}
        ms, tokens = self._used.get(take.account, (0, 0))
        ms, got_ms = _booked(ms, take.spent_ms, take.want_ms, take.quota.seconds_per_day * 1000, take, today)
        tokens, got_tokens = _booked(
            tokens, take.spent_tokens, take.want_tokens, take.quota.tokens_per_day, take, today
        )
        self._used[take.account] = ms, tokens
        answer: asyncio.Future[Taken] = asyncio.get_running_loop().create_future()
        answer.set_result(Taken(today, got_ms, got_tokens))
        return answer


def _booked(used: int, spent: int, want: int, most: int, take: Take, today: int) -> tuple[int, int]:
    """Return the new usage, and the granted part of `want`. `functions.lua` has the same rule."""
    if spent > 0 or take.day == today:
        used = max(0, used + spent)
    got = min(want, max(0, most - used)) if most else want
    return used + got, got
