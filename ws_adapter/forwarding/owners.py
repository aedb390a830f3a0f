"""The lookup of the adapter that owns the session of a token, and of its forwarding address."""

import asyncio
from typing import Final

from ws_adapter.peers.base import Peer, Peers
from ws_adapter.process.clock import Clock
from ws_adapter.process.tasks import end
from ws_adapter.resume.tokens import Claim, ResumeTokens

FRESH_S: Final = 0.5
"""The shortest interval between two queries to Redis, however many clients reconnect at once."""

KEPT_S: Final = 60.0
"""The seconds for which an adapter stays known after Redis lists it no more: it may have lost only its
connection to Redis, and still have its sessions. No client reconnects later."""


class SessionOwners:
    """The other adapters, as last read from Redis."""

    def __init__(self, tokens: ResumeTokens, peers: Peers, clock: Clock, host: str) -> None:
        """`host` is the name of this machine: Unix sockets of other machines cannot be reached."""
        self._tokens = tokens
        self._host = host
        self._peers = peers
        self._clock = clock
        self._known: dict[str, tuple[Peer, float]] = {}
        """Adapters by id, with the time when Redis listed each last."""
        self._told: list[Peer] | None = None
        """The last answer of Redis."""
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[list[Peer]] | None = None

    async def find(self, claim: Claim) -> Peer | None:
        """Return the adapter that made a token, if it is known and reachable; else None."""
        if self._clock.now() >= self._asked_at + FRESH_S:
            if self._asking is None:
                self._asking = asyncio.create_task(self._peers.all())
            asking = self._asking
            try:
                found = await asyncio.shield(asking)
            finally:
                if self._asking is asking and asking.done():
                    self._asking = None
            if found is not self._told:
                self._learn(found)
        marked = [peer for peer, _ in self._known.values() if self._tokens.is_of(claim, peer.adapter_id)]
        return next((peer for peer in marked if self._can_reach(peer)), None)

    def _learn(self, found: list[Peer]) -> None:
        now = self._asked_at = self._clock.now()
        self._told = found
        known = {key: known for key, known in self._known.items() if known[1] > now - KEPT_S}
        self._known = known | {peer.adapter_id: (peer, now) for peer in found}

    def _can_reach(self, peer: Peer) -> bool:
        is_elsewhere = peer.forward.startswith("unix:") and peer.host != self._host
        return bool(peer.forward) and not is_elsewhere

    async def close(self) -> None:
        """Stop asking Redis."""
        if self._asking is not None:
            await end(self._asking)
