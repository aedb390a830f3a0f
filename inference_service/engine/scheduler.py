"""Who takes part in the next tick. Plain numbers in, plain numbers out."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """Tokens that one session could feed now."""

    session: int
    tokens: int
    arrival: float
    """Monotonic seconds at which the unit came in; the oldest has the least slack."""
    decoding: bool


@dataclass(frozen=True)
class Grant:
    """How many of a session's tokens the next forward takes; fewer than asked splits a long prompt."""

    session: int
    tokens: int


def schedule(requests: Sequence[Request], budget: int) -> list[Grant]:
    """Fills a tick of at most `budget` tokens: decoding sessions first, then by age of their unit.

    Every tick makes progress: the first request gets at least one token whatever the budget.
    """
    grants: list[Grant] = []
    left = max(1, budget)
    for request in sorted(requests, key=lambda r: (not r.decoding, r.arrival, r.session)):
        if left == 0:
            break
        tokens = min(request.tokens, left)
        grants.append(Grant(request.session, tokens))
        left -= tokens
    return grants
