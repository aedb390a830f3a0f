"""Sessions that have not requested a slot yet: their number is bounded, their time is not."""

from collections import Counter
from typing import Final, Protocol

from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import Verdict

MOST_PENDING: Final = 256


class PendingSession(Protocol):
    """A session that may not have requested a slot yet."""

    @property
    def has_asked(self) -> bool:
        """Whether it has asked for a slot, or is over."""

    def end(self, verdict: Verdict) -> None:
        """End the session with a verdict."""


class PendingSessions:
    """The pending sessions, oldest first. Beyond the bound, the oldest of the caller with the most ends."""

    def __init__(self, most: int = MOST_PENDING) -> None:
        self._most = most
        self._callers: dict[PendingSession, str] = {}

    def __len__(self) -> int:
        return len(self._callers)

    def enter(self, session: PendingSession, caller: str) -> None:
        """Add an open session of a caller; end another one if there are too many."""
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
        """Remove a session that is over. Harmless when repeated."""
        self._callers.pop(session, None)
