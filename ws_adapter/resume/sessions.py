"""The sessions of an adapter that can be resumed, by token, with a bound on detached ones."""

import hmac
import logging
from typing import Final

from antiphon_service.semconv import ResumeOutcome
from ws_adapter.observability.metrics import Metrics
from ws_adapter.protocol.wire.events import ResumeOffer
from ws_adapter.resume.buffer import ReplayBuffers
from ws_adapter.resume.connection import ResumableConnection
from ws_adapter.resume.tokens import NONCE_BYTES, ResumeTokens

logger = logging.getLogger(__name__)

MOST_DETACHED: Final = 1024
"""The most detached sessions; beyond it, the session that was detached first ends."""

_NO_NONCE: Final = bytes(NONCE_BYTES)


class ResumableSessions:
    """The registry of resumable sessions: it has a session from its first token to its end."""

    def __init__(self, tokens: ResumeTokens, metrics: Metrics, window_s: float) -> None:
        self.buffers: Final = ReplayBuffers()
        self._tokens = tokens
        self._metrics = metrics
        self._window_s = window_s
        self._sessions: dict[str, ResumableConnection] = {}
        self._detached: dict[ResumableConnection, None] = {}
        """Detached sessions, in the order of detaching."""

    def offer(self, connection: ResumableConnection, nonce: bytes | None = None) -> ResumeOffer:
        """Make a token for a session, which replaces the last one; its nonce is `nonce`, or a new one."""
        token, nonce = self._tokens.make(connection.session_id, connection.holder, nonce)
        connection.rotate(nonce)
        self._sessions[connection.session_id] = connection
        return ResumeOffer(token, self._window_s)

    def find(self, token: str) -> tuple[ResumableConnection, bytes] | None:
        """Return the session of a token, and the token's nonce.

        The lookup of an unknown session takes as long as that of a wrong nonce.
        """
        claim = self._tokens.read(token)
        if claim is None:
            return None
        connection = self._sessions.get(claim.session_id)
        nonces = connection.nonces if connection is not None else (_NO_NONCE, _NO_NONCE)
        is_good = any([hmac.compare_digest(nonce, claim.nonce) for nonce in nonces])
        return (connection, claim.nonce) if connection is not None and is_good else None

    def detached(self, connection: ResumableConnection) -> None:
        """Add a detached session."""
        self._detached[connection] = None
        self._metrics.detached[connection.kind] += 1
        logger.info("session detached: its connection was lost")
        if len(self._detached) > MOST_DETACHED:
            next(iter(self._detached)).end()

    def attached(self, connection: ResumableConnection) -> None:
        """Note that the session has a connection again."""
        self._is_detached_no_more(connection)
        self._metrics.resumes[ResumeOutcome.RESUMED] += 1
        logger.info("session resumed")

    def forget(self, connection: ResumableConnection) -> None:
        """Forget a finished session, so that no token opens it. Harmless when repeated."""
        if self._is_detached_no_more(connection):
            self._metrics.resumes[ResumeOutcome.EXPIRED] += 1
        if self._sessions.get(connection.session_id) is connection:
            del self._sessions[connection.session_id]

    def taken_over(self) -> None:
        """Count a session taken over from a dead adapter."""
        self._metrics.resumes[ResumeOutcome.TAKEN_OVER] += 1
        logger.info("session taken over from another adapter")

    def refused(self) -> None:
        """Count a token that resumed no session."""
        self._metrics.resumes[ResumeOutcome.REFUSED] += 1

    def _is_detached_no_more(self, connection: ResumableConnection) -> bool:
        if connection not in self._detached:
            return False
        del self._detached[connection]
        self._metrics.detached[connection.kind] -= 1
        return True
