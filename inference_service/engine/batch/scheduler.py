"""The scheduler of a tick: earliest deadline first, chunked prefill, fair shares. Plain numbers in, plain
numbers out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

UNIT_S = 1.0
"""How long after its arrival a unit is due; what is due later than that from now on can wait."""
LEAST_SHARE = 64
"""Rows that work without a deadline gets at least, when it gets any while a unit waits."""
_ROWS = 4
"""One part in so many of a tick's rows may go to such work then."""
_TIME = 8
"""One part in so many of the engine's time is such work's then."""


def is_urgent(due: float | None, now: float) -> bool:
    """Return whether work that is due then is real-time work now. Monotonic seconds; None has no deadline."""
    return due is not None and due - now <= UNIT_S


@dataclass(frozen=True)
class Request:
    """Tokens that one session could feed now."""

    session: int
    tokens: int
    arrival: float
    """Monotonic seconds at which the unit came in."""
    decoding: bool
    due: float | None = None
    """Monotonic seconds at which the unit's answer should be there; None of work that can wait."""


@dataclass(frozen=True)
class Grant:
    """The number of a session's tokens in the next forward; fewer than asked splits a long prompt."""

    session: int
    tokens: int


class Share:
    """The share of a tick for work without a deadline.

    While no unit waits it may take `most` rows. While one does, it gets portions of a quarter of them, and no
    portion before the last one has been made up for: an eighth of the time is its own, whatever a row of this
    model costs on this machine. Units take many ticks, and would be late if rows alone were counted.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._portion = min(most, max(LEAST_SHARE, most // _ROWS))
        self._debt = 0.0

    def rows(self, *, units_wait: bool) -> int:
        """Return rows of the next tick for such work; 0 if it has to wait."""
        if not units_wait:
            return self._most
        return 0 if self._debt > 0 else self._portion

    def spend(self, units: float, others: float, *, units_waited: bool) -> None:
        """Account for a tick's seconds of units and of work without a deadline."""
        if units_waited:
            self._debt = max(0.0, self._debt + others - units / (_TIME - 1))
        else:
            self._debt = others  # a unit that came meanwhile has waited for it

    @staticmethod
    def pause(others: float) -> float:
        """Return how many seconds such work leaves the processor to units, after it has taken `others`."""
        return others * (_TIME - 1)


def schedule(requests: Sequence[Request], budget: int, share: int) -> list[Grant]:
    """Fill a tick of at most `budget` tokens, of which work that can wait gets at most `share`.

    That share is kept for it. Among units, those that decode go first, then those with the least slack;
    among the rest, those that decode, for half of it if prompts wait too, then the oldest. A unit gets at
    least one token whatever the budget.
    """
    units = [request for request in requests if request.due is not None]
    others = [request for request in requests if request.due is None]
    share = min(share, budget, _tokens(others)) if units else min(share, budget)
    grants = _fill(sorted(units, key=_slack), max(1, budget - share))
    decoding = sorted((request for request in others if request.decoding), key=_age)
    reading = sorted((request for request in others if not request.decoding), key=_age)
    kept = min(share // 2, _tokens(reading))
    grants += _fill(decoding, share - kept)
    return grants + _fill(reading, share - min(share - kept, _tokens(decoding)))


def _slack(request: Request) -> tuple[bool, float, int]:
    return (not request.decoding, request.due or 0.0, request.session)


def _age(request: Request) -> tuple[float, int]:
    return (request.arrival, request.session)


def _tokens(requests: Iterable[Request]) -> int:
    return sum(request.tokens for request in requests)


def _fill(requests: Sequence[Request], rows: int) -> list[Grant]:
    """Grant in this order until `rows` are spent."""
    grants: list[Grant] = []
    for request in requests:
        if rows <= 0:
            break
        grants.append(Grant(request.session, min(request.tokens, rows)))
        rows -= request.tokens
    return grants
