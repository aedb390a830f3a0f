"""Takeover of the sessions of dead adapters, when their clients reconnect here."""

import asyncio
import hmac
import logging
from typing import Final

from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import Verdict
from ws_adapter.resume.connection import path_of
from ws_adapter.resume.request import ResumeRequest
from ws_adapter.resume.tokens import ResumeTokens, holder_of, new_nonce
from ws_adapter.session.journal_writer import TakenSession
from ws_adapter.shared_journal.journals import SharedJournals, Unclaimed
from ws_adapter.web.routes import Selection
from ws_adapter.web.websocket import PublicConnection

logger = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 64
"""The most concurrent lookups of sessions; the data of one in Redis may be 10 MiB."""

TRIES: Final = 5
BEHIND_S: Final = 0.1
"""The seconds between the `TRIES` lookups of a session whose last records Redis may not have yet."""


class Takeovers:
    """The takeover of sessions whose journals are in Redis."""

    def __init__(self, tokens: ResumeTokens, journals: SharedJournals) -> None:
        self._tokens = tokens
        self._journals = journals
        self._room = asyncio.Semaphore(MOST_AT_ONCE)

    async def take(
        self, connection: PublicConnection, asked: ResumeRequest, selection: Selection
    ) -> TakenSession | Verdict:
        """Take over the session of a token, which then continues here; or return why that is impossible.

        A token of another key is refused before Redis is asked, so that the answer reveals nothing about its
        session.
        """
        claim = self._tokens.read(asked.token)
        holder = holder_of(connection.key.hash if connection.key is not None else None)
        if claim is None or asked.last_event is None or not hmac.compare_digest(claim.holder, holder):
            return errors.RESUME_FAILED
        nonces = claim.nonce, new_nonce()
        path = path_of(selection)
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(BEHIND_S)  # outside the semaphore
            if self._room.locked():
                return errors.OWNER_UNREACHABLE
            async with self._room:
                stored = await self._journals.claim(
                    claim.session_id, nonces, path, asked.last_event, connection.dead_owner
                )
            if stored is not Unclaimed.BEHIND:
                break
        match stored:
            case Unclaimed.UNKNOWN | Unclaimed.BEHIND:
                return errors.RESUME_FAILED
            case Unclaimed():
                return errors.OWNER_UNREACHABLE
        try:
            return TakenSession.of(claim.session_id, stored, asked.last_event, nonces)
        except ValueError as error:
            logger.warning("takeover failed: the saved state cannot be read: %s", error)
            self._journals.give_up(claim.session_id)
            return errors.RESUME_FAILED
