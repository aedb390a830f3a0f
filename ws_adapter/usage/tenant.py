"""Tenants, and their quotas for a day."""

from dataclasses import dataclass
from typing import Final, NamedTuple

ANONYMOUS: Final = "anonymous"
"""Name of the tenant of all sessions without a key."""


class Quota(NamedTuple):
    """The quota of one tenant for a day of UTC; 0 is any amount."""

    seconds_per_day: int = 0
    tokens_per_day: int = 0

    @property
    def is_any(self) -> bool:
        """Whether any limit is set."""
        return self.seconds_per_day > 0 or self.tokens_per_day > 0


UNLIMITED: Final = Quota()


@dataclass(frozen=True)
class Tenant:
    """The tenant of a session: the holder of a key. `account` is the hash of the key, empty without one."""

    name: str = ANONYMOUS
    account: str = ""
    quota: Quota = UNLIMITED


NOBODY: Final = Tenant()
"""The tenant of all sessions without a key."""
