"""Which adapter has the session of a token, and where it takes forwarded connections."""

import asyncio
from typing import Final

from ws_adapter.peers.base import Peer, Peers
from ws_adapter.process.clock import Clock
from ws_adapter.process.tasks import end
from ws_adapter.resume.tokens import Claim, ResumeTokens

FRESH_S: Final = 0.5
"""The adapters are asked for no more often, however many clients come back at once."""


class Owners:
    """The other adapters, as they were at most `FRESH_S` seconds ago."""

    def __init__(self, tokens: ResumeTokens, peers: Peers, clock: Clock, host: str) -> None:
        """`host` is the name of this machine: no Unix socket of another one can be reached."""
        self._tokens = tokens
        self._host = host
        self._peers = peers
        self._clock = clock
        self._known: list[Peer] = []
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[list[Peer]] | None = None

    async def find(self, claim: Claim) -> str | None:
        """Return the target of the adapter that made a token; None if none that lives has."""
        if self._clock.now() >= self._asked_at + FRESH_S:
            if self._asking is None:
                self._asking = asyncio.create_task(self._peers.all())
            asking = self._asking
            self._known = await asyncio.shield(asking)
            if self._asking is asking:
                self._asking, self._asked_at = None, self._clock.now()
        found = [peer for peer in self._known if self._tokens.is_of(claim, peer.adapter_id)]
        return next((peer.forward for peer in found if self._can_reach(peer)), None)

    def _can_reach(self, peer: Peer) -> bool:
        is_elsewhere = peer.forward.startswith("unix:") and peer.host != self._host
        return bool(peer.forward) and not is_elsewhere

    async def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            await end(self._asking)
