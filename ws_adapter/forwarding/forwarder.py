"""Forwarding of a client that reconnects to the adapter that has its session, the owner.

The owner treats the connection as any other: it checks key, origin and limits, answers the request, parses
frames and pings. This adapter reads the request and the token in it, and passes bytes on from then on. A
connection that was forwarded is never forwarded again.
"""

import asyncio
import logging
import socket
from functools import partial
from typing import Final

from antiphon_service.semconv import ResumeOutcome
from ws_adapter.forwarding.introduction import CHALLENGE_BYTES, Introductions
from ws_adapter.forwarding.owners import SessionOwners
from ws_adapter.forwarding.relay import Relay
from ws_adapter.forwarding.tls import PeerTls
from ws_adapter.observability.metrics import Metrics
from ws_adapter.peers.base import Peer
from ws_adapter.protocol.wire import errors
from ws_adapter.resume.request import resume_request
from ws_adapter.resume.tokens import Claim, ResumeTokens
from ws_adapter.web.websocket import PublicConnection
from ws_adapter.worker.transport.target import Target

logger = logging.getLogger(__name__)

REACH_S: Final = 2.0
"""The seconds within which the owner is found and reached: less than a handshake may take."""

MOST_FORWARDED: Final = 1024
"""The most connections that are forwarded, or about to be."""

BUFFER_BYTES: Final = 128 * 1024
"""The size of the kernel's socket buffers between two adapters: data in them cannot be withdrawn."""

IDLE_S: Final = 10
"""The keepalive idle time of the kernel, in seconds."""

PROBE_S: Final = 5
"""The keepalive interval of the kernel, in seconds."""

PROBES: Final = 3


class Forwarder:
    """The connections that this adapter forwards."""

    def __init__(
        self,
        tokens: ResumeTokens,
        introductions: Introductions,
        owners: SessionOwners,
        metrics: Metrics,
        tls: PeerTls | None,
    ) -> None:
        self._tokens = tokens
        self._introductions = introductions
        self._owners = owners
        self._metrics = metrics
        self._tls = tls
        self._coming: dict[PublicConnection, asyncio.Task[None]] = {}
        self._relays: set[Relay] = set()

    def take(self, connection: PublicConnection) -> bool:
        """Forward a connection after its request. Return False if its token is not another adapter's, or if
        too many connections are forwarded.

        The connection is not read until it is forwarded, or is served here.
        """
        assert connection.http_request is not None
        asked = resume_request(connection.http_request.path)
        claim = self._tokens.read(asked.token) if asked is not None else None
        if claim is None or self._tokens.is_own(claim):
            return False
        if len(self._coming) + len(self._relays) >= MOST_FORWARDED:
            connection.verdict = errors.OVERLOADED
            return False
        connection.transport.pause_reading()
        task = asyncio.create_task(self._forward(connection, claim))
        self._coming[connection] = task
        connection.when_lost(partial(self._lost, connection))
        return True

    async def close(self) -> None:
        """Abort all forwarded connections: their clients reconnect to other adapters."""
        tasks = list(self._coming.values())
        for connection in list(self._coming):
            connection.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        for relay in list(self._relays):
            relay.abort()
        await self._owners.close()

    def _lost(self, connection: PublicConnection) -> None:
        task = self._coming.pop(connection, None)
        if task is not None:
            task.cancel()

    async def _forward(self, connection: PublicConnection, claim: Claim) -> None:
        peer: Peer | None = None
        try:
            async with asyncio.timeout(REACH_S):
                peer = await self._owners.find(claim)
                owner = await self._reach(peer.forward, connection) if peer is not None else None
        except (ConnectionRefusedError, FileNotFoundError):
            owner = None  # its process has ended
            connection.dead_owner = peer.adapter_id if peer is not None else ""
        except (OSError, TimeoutError, EOFError) as error:
            logger.warning("connection not forwarded: owner unreachable", extra={"error": repr(error)})
            connection.verdict, owner = errors.OWNER_UNREACHABLE, None
        except Exception:
            logger.exception("connection not forwarded: unexpected error")
            connection.verdict, owner = errors.OWNER_UNREACHABLE, None
        del self._coming[connection]
        if owner is None:
            connection.transport.resume_reading()
            connection.go_on()
            return
        transport, head, rest = connection.give_away()
        owner.write(head + rest)
        self._metrics.resumes[ResumeOutcome.FORWARDED] += 1
        self._relays.add(Relay(transport, owner, self._relays.discard))

    async def _reach(self, target: str, connection: PublicConnection) -> asyncio.Transport:
        """Connect to an adapter and introduce the client.

        Raises `OSError`, or `EOFError` if the adapter closes the connection.
        """
        loop = asyncio.get_running_loop()
        at = Target.parse(target)
        greeting = _Greeting()
        try:
            if at.path:
                await loop.create_unix_connection(lambda: greeting, at.path)
            else:
                tls = self._tls.client if self._tls is not None else None
                await loop.create_connection(lambda: greeting, at.host, at.port, ssl=tls)
            challenge = await greeting.challenge
            assert greeting.transport is not None
            if greeting.transport.is_closing():
                raise EOFError
        except BaseException:
            greeting.abort()
            raise
        greeting.transport.write(self._introductions.introduce(challenge, connection.peer))
        return greeting.transport


class _Greeting(asyncio.Protocol):
    """A connection to an adapter that has not sent its challenge yet."""

    def __init__(self) -> None:
        self.challenge: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        _configure_socket(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self.challenge.done():
            return
        if len(self._data) == CHALLENGE_BYTES:
            assert self.transport is not None
            self.transport.pause_reading()
            self.challenge.set_result(self._data)
        elif len(self._data) > CHALLENGE_BYTES:
            self.challenge.set_exception(OSError("the peer is no adapter"))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.challenge.done():
            self.challenge.set_exception(error or EOFError())

    def abort(self) -> None:
        """Close the connection, since its client is gone or the time is up."""
        if not self.challenge.cancel() and not self.challenge.cancelled():
            self.challenge.exception()
        if self.transport is not None:
            self.transport.abort()


def _configure_socket(sock: socket.socket) -> None:
    """Keep the kernel's buffers small, and enable keepalive to detect a lost owner."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", IDLE_S), ("TCP_KEEPINTVL", PROBE_S), ("TCP_KEEPCNT", PROBES)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (IDLE_S + PROBE_S * PROBES))
