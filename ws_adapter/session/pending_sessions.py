"""Open sessions without a request for a slot: a bounded number, without a time limit."""

from collections import Counter
from typing import Final, Protocol

from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import Verdict

MOST_PENDING: Final = 256


class PendingSession(Protocol):
    """A session without a request for a slot."""

    @property
    def has_asked(self) -> bool:
        """Whether it has asked for a slot, or is over."""

    def end(self, verdict: Verdict) -> None:
        """End the session with a verdict."""


class PendingSessions:
    """The pending sessions, the oldest first. One too many ends the oldest of the caller with the most."""

    def __init__(self, most: int = MOST_PENDING) -> None:
        self._most = most
        self._callers: dict[PendingSession, str] = {}

    def __len__(self) -> int:
        return len(self._callers)

    def enter(self, session: PendingSession, caller: str) -> None:
        """Count an open session."""
        self._callers[session] = caller
        if len(self._callers) <= self._most:
            return
        self._callers = {one: of for one, of in self._callers.items() if not one.has_asked}
        if len(self._callers) <= self._most:
            return
        (most, _), *_ = Counter(self._callers.values()).most_common(1)
        oldest = next(one for one, of in self._callers.items() if of == most)
        del self._callers[oldest]
        oldest.end(errors.NOT_STARTED)

    def leave(self, session: PendingSession) -> None:
        """Record the end of a session."""
        self._callers.pop(session, None)
