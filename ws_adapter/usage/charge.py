"""The used and the paid slot time and tokens of one session, without I/O or a clock."""

from typing import Final

from ws_adapter.usage.store import Take, Taken
from ws_adapter.usage.tenant import Tenant

SLICE_MS: Final = 10_000
SLICE_TOKENS: Final = 1_000
"""The slice of the tenant's quota that a session takes at once: `SLICE_MS` in milliseconds, this in
tokens."""

LOW_MS: Final = 3_000
LOW_TOKENS: Final = 300
"""The rest of a slice, in tokens (`LOW_MS`: in milliseconds), below which the session takes the next one."""

SHORTEST_MS: Final = 1_000
"""The least milliseconds charged for a slot, so that opening and dropping a session is not free."""


class Charge:
    """The charge of one session. Methods take times in seconds of the caller's clock.

    A session pays for the time for which it holds slots, and for its tokens.
    """

    def __init__(self, tenant: Tenant, first_ms: int = SLICE_MS) -> None:
        """`first_ms` is the first slice in milliseconds."""
        self.tenant = tenant
        self._next_ms = first_ms
        self._ended_ms = 0
        """The milliseconds of slots that were released."""
        self._since: list[float] = []
        """The grant times of the held slots."""
        self.tokens = 0
        self._paid_ms = self._paid_tokens = 0
        self._day = 0
        """The day of the last slice."""
        self.keeps_slice = False
        """Whether `settle` keeps the rest of the slice, because the end of the session is unknown."""
        self.is_asking = False
        """Whether an answer of the usage store is awaited."""

    def hold(self, now: float) -> None:
        """Record a granted slot."""
        self._since.append(now)

    def release(self, now: float) -> None:
        """Record that the oldest held slot was released."""
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
        """Return the next booking; None if the slice suffices. Pass its result to `answered`."""
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
        """Return the last booking of a finished session, which returns the rest of the slice; None if none is
        left."""
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
