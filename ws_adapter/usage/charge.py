"""What one session has spent, and what of it is paid: no I/O, no clock of its own."""

from typing import Final

from ws_adapter.usage.store import Take, Taken
from ws_adapter.usage.tenant import Tenant

SLICE_MS: Final = 10_000
SLICE_TOKENS: Final = 1_000
"""What a session takes of its tenant's quota at a time."""

LOW_MS: Final = 3_000
LOW_TOKENS: Final = 300
"""When less than this is left of a slice the session takes the next one."""

SHORTEST_MS: Final = 1_000
"""What holding a slot costs at least: a session that is opened and dropped at once is no free one."""


class Charge:
    """Of one session. Times in seconds of a clock of the caller's.

    What a session spends is the time for which it holds slots, and its tokens.
    """

    def __init__(self, tenant: Tenant, first_ms: int = SLICE_MS) -> None:
        """`first_ms` is the slice that it takes first."""
        self.tenant = tenant
        self._next_ms = first_ms
        self._ended_ms = 0
        """Of slots that are given back."""
        self._since: list[float] = []
        """When each of the slots was granted that are held."""
        self.tokens = 0
        self._paid_ms = self._paid_tokens = 0
        self._day = 0
        """On which the last slice was taken."""
        self.keeps_slice = False
        """Whether nothing is given back: nobody knows whether the session has come to its end."""
        self.is_asking = False
        """Whether an answer of the book is awaited."""

    def hold(self, now: float) -> None:
        """A slot is granted."""
        self._since.append(now)

    def release(self, now: float) -> None:
        """The oldest of the slots is given back."""
        self._ended_ms += max(SHORTEST_MS, _ms(now - self._since.pop(0)))

    def spent_ms(self, now: float) -> int:
        """Return for how long slots were held, each for at least `SHORTEST_MS`."""
        return self._ended_ms + sum(max(SHORTEST_MS, _ms(now - since)) for since in self._since)

    @property
    def paid_ms(self) -> int:
        """What the quota has paid for so far."""
        return self._paid_ms

    def is_spent(self, now: float) -> bool:
        """Return whether nothing is left of what was paid for."""
        quota = self.tenant.quota
        return (quota.seconds_per_day > 0 and self.spent_ms(now) >= self._paid_ms) or (
            quota.tokens_per_day > 0 and self.tokens >= self._paid_tokens
        )

    def ask(self, now: float) -> Take | None:
        """Return what to book now, None if the slice will do. Tell the answer by `answered`."""
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
        """The book has it."""
        self.is_asking = False
        self._next_ms = SLICE_MS
        self._paid_ms += take.spent_ms + taken.ms
        self._paid_tokens += take.spent_tokens + taken.tokens
        self._day = taken.day

    def settle(self, now: float) -> Take | None:
        """Return what to book when the session is over: the rest of a slice goes back."""
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
