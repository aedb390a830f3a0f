"""The spent and the paid usage of one session: no I/O, no clock of its own."""

from typing import Final

from ws_adapter.usage.store import Take, Taken
from ws_adapter.usage.tenant import Tenant

SLICE_MS: Final = 10_000
SLICE_TOKENS: Final = 1_000
"""The slice of the tenant's quota that a session takes at a time, in tokens."""

LOW_MS: Final = 3_000
LOW_TOKENS: Final = 300
"""The rest of a slice below which the session takes the next one."""

SHORTEST_MS: Final = 1_000
"""The least cost of holding a slot: a session that is opened and dropped at once is not free."""


class Charge:
    """The charge of one session. Times in seconds of a clock of the caller's.

    A session is charged for the time for which it holds slots, and for its tokens.
    """

    def __init__(self, tenant: Tenant, first_ms: int = SLICE_MS) -> None:
        """`first_ms` is the slice that it takes first."""
        self.tenant = tenant
        self._next_ms = first_ms
        self._ended_ms = 0
        """The milliseconds of slots that were given back."""
        self._since: list[float] = []
        """The grant times of the held slots."""
        self.tokens = 0
        self._paid_ms = self._paid_tokens = 0
        self._day = 0
        """The day of the last slice."""
        self.keeps_slice = False
        """Whether no slice is given back, since the end of the session is unknown."""
        self.is_asking = False
        """Whether an answer of the usage store is awaited."""

    def hold(self, now: float) -> None:
        """Record a granted slot."""
        self._since.append(now)

    def release(self, now: float) -> None:
        """Record that the oldest slot was given back."""
        self._ended_ms += max(SHORTEST_MS, _ms(now - self._since.pop(0)))

    def spent_ms(self, now: float) -> int:
        """Return the milliseconds for which slots were held, each for at least `SHORTEST_MS`."""
        return self._ended_ms + sum(max(SHORTEST_MS, _ms(now - since)) for since in self._since)

    @property
    def paid_ms(self) -> int:
        """The milliseconds that the quota has paid for so far."""
        return self._paid_ms

    def is_spent(self, now: float) -> bool:
        """Return whether all paid usage is spent."""
        quota = self.tenant.quota
        return (quota.seconds_per_day > 0 and self.spent_ms(now) >= self._paid_ms) or (
            quota.tokens_per_day > 0 and self.tokens >= self._paid_tokens
        )

    def ask(self, now: float) -> Take | None:
        """Return the next booking, None if the slice suffices. Report its result to `answered`."""
        quota = self.tenant.quota
        left_ms, left_tokens = self._paid_ms - self.spent_ms(now), self._paid_tokens - self.tokens
        wants_time = quota.seconds_per_day > 0 and left_ms < LOW_MS
        wants_tokens = quota.tokens_per_day > 0 and left_tokens < LOW_TOKENS
        if self.is_asking or not (wants_time or wants_tokens):
            return None
        self.is_asking = True
        return Take(
            self.tenant.account,
            quota,
            spent_ms=max(0, -left_ms),
            want_ms=self._next_ms if wants_time else 0,
            spent_tokens=max(0, -left_tokens),
            want_tokens=SLICE_TOKENS if wants_tokens else 0,
        )

    def answered(self, take: Take, taken: Taken) -> None:
        """Record the result of a booking."""
        self.is_asking = False
        self._next_ms = SLICE_MS
        self._paid_ms += take.spent_ms + taken.ms
        self._paid_tokens += take.spent_tokens + taken.tokens
        self._day = taken.day

    def settle(self, now: float) -> Take | None:
        """Return the last booking of a finished session: the rest of a slice goes back."""
        if not self.tenant.quota.is_any:
            return None
        rest_ms, rest_tokens = self.spent_ms(now) - self._paid_ms, self.tokens - self._paid_tokens
        if self.keeps_slice:
            rest_ms, rest_tokens = max(0, rest_ms), max(0, rest_tokens)
        self._paid_ms, self._paid_tokens = self._paid_ms + rest_ms, self._paid_tokens + rest_tokens
        if not (rest_ms or rest_tokens):
            return None
        return Take(
            self.tenant.account,
            self.tenant.quota,
            spent_ms=rest_ms,
            spent_tokens=rest_tokens,
            day=self._day,
        )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
