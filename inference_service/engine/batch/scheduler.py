"""The scheduler of a tick: earliest deadline first, chunked prefill, fair shares. It works on plain
numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

UNIT_S = 1.0
"""Seconds from a unit's arrival to its deadline; work that is due later than that can wait."""
LEAST_SHARE = 64
"""Fewest rows of a grant to work without a deadline while a unit waits."""
_ROWS = 4
"""Share of a tick's rows for work without a deadline while a unit waits, as a divisor."""
_TIME = 8
"""Share of the engine's time for work without a deadline, as a divisor."""


def is_urgent(due: float | None, now: float) -> bool:
    """Return whether work due at `due` is real-time work at `now`, in monotonic seconds; None has no
    deadline.
    """
    return due is not None and due - now <= UNIT_S


@dataclass(frozen=True)
class Request:
    """The tokens that one session could feed now."""

    session: int
    tokens: int
    arrival: float
    """Monotonic seconds at which the unit arrived."""
    decoding: bool
    due: float | None = None
    """Deadline of the unit in monotonic seconds; None for work that can wait."""


@dataclass(frozen=True)
class Grant:
    """The number of a session's tokens in the next forward; a smaller grant splits a long prompt."""

    session: int
    tokens: int


class Share:
    """The share of a tick for work without a deadline, kept as a debt in seconds.

    While no unit waits, such work may take `most` rows. While a unit waits, it gets portions of a quarter of
    these rows, and the next portion only when the time of the last one is paid back. So it takes an eighth of
    the time, whatever a row costs. A limit of rows alone would make units late, because a unit takes many
    ticks.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._portion = min(most, max(LEAST_SHARE, most // _ROWS))
        self._debt = 0.0

    def rows(self, *, units_wait: bool) -> int:
        """Return the rows of the next tick for such work; 0 if it must wait."""
        if not units_wait:
            return self._most
        return 0 if self._debt > 0 else self._portion

    def spend(self, units: float, others: float, *, units_waited: bool) -> None:
        """Account for a tick's seconds of units and of work without a deadline."""
        if units_waited:
            self._debt = max(0.0, self._debt + others - units / (_TIME - 1))
        else:
            self._debt = others  # a unit that arrived during the tick has waited for it

    @staticmethod
    def pause(others: float) -> float:
        """Return for how many seconds such work must leave the processor to units, after it took `others`
        seconds.
        """
        return others * (_TIME - 1)


def schedule(requests: Sequence[Request], budget: int, share: int) -> list[Grant]:
    """Fill a tick of at most `budget` tokens; work that can wait gets at most `share` of them.

    The share is reserved. Among units, decoding ones go first, then those with the least slack. Among other
    work, decoding goes first, with half of the share if prompts wait too, then the oldest. A unit gets at
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
    """Grant tokens in this order until `rows` are spent."""
    grants: list[Grant] = []
    for request in requests:
        if rows <= 0:
            break
        grants.append(Grant(request.session, min(request.tokens, rows)))
        rows -= request.tokens
    return grants
