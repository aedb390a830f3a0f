"""Connections of clients: plain HTTP requests, and WebSockets as messages of bytes.

`websockets` implements the protocol: it parses frames, answers pings and closes. `PublicConnection` is a
subclass of its public `ServerConnection`. No other module relies on names that the library does not document;
tests/ws_adapter/web/test_undocumented_names.py lists them. asyncio calls `data_received` with the bytes of a
client, some of which do not reach the library:

- `HttpExchange` answers plain HTTP requests. The library closes a connection without an answer on a body, on
  a transfer coding and on bytes that are not a request. It has no hook before it parses a request.
- `FrameScanner` counts frames before the library handles them. One read of 256 KiB has up to 43,690 pings,
  which the library answers in one go: 0.3 s of the event loop. The library has no rate limit of frames.
- `HttpSocket` takes over the transport of a request that a session answers.
- The connection of a client in the middle of a large message is aborted when the incomplete messages of all
  clients are too large together. `max_size` bounds only each message: 1,000 connections may hold 16 GiB.
- A text message of one frame bypasses the library's parser if no message waits and no data follows it.
  `write_text` writes such a frame itself. A unit of 85 KB in and 128 KB out then costs the adapter 10 % more
  CPU than with a parser and a writer that replace those inside the library. With the library's own parser and
  `broadcast` it would cost 21 % more than with these (docs/decisions/0009-http-and-websocket.md). The library
  copies a message three times, and its only hook for a message is `recv`, which wakes a task.

No method of the library is replaced. Only `close` and asyncio's callbacks are overridden.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import apply_mask  # type: ignore[attr-defined]
from websockets.http11 import Response
from websockets.protocol import State

from antiphon_service.telemetry.port import UNKNOWN_ADDRESS
from ws_adapter.access.keys import Key
from ws_adapter.access.rate_limit import Allowance, Bucket
from ws_adapter.access.rights import ALL_RIGHTS
from ws_adapter.observability.tracing import Upgrade
from ws_adapter.process.byte_count import ByteCount
from ws_adapter.process.call_queue import CallQueue
from ws_adapter.protocol.core.actions import Respond
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import CloseCode, Verdict
from ws_adapter.protocol.wire.limits import EVENTS_WINDOW_S
from ws_adapter.web.frames import CONTINUATION, FrameHead, FrameScanner
from ws_adapter.web.http1 import HttpRequest, RequestReader
from ws_adapter.web.http_exchange import LINGER_S, HttpExchange
from ws_adapter.web.http_socket import HttpSocket
from ws_adapter.web.message import (
    SMALL_BURST,
    SMALL_FRAGMENT,
    SMALL_MESSAGE,
    SMALL_PER_S,
    Arriving,
    Disconnected,
    Message,
)
from ws_adapter.web.routes import RefusedSession, Selection, opens_session

_TEXT_MESSAGE: Final = 0x81
"""The first byte of a frame that is a whole text message."""

_MASKED: Final = 0x80
_KEY_BYTES: Final = 4

SPLIT_BYTES: Final = 4096
"""The size in bytes from which a text message is handed on by itself if one read has several."""

MOST_PARTS: Final = 64
"""The most reads of a frame that is collected here; the library collects a frame of more reads."""

WRITE_LIMIT: Final = 32 * 1024
"""The bytes in the transport above which `send` waits: data in it cannot be withdrawn."""

COUNTED_BYTES: Final = 2**15
"""The bytes per count in the rate limit of the address: larger frames count several times."""

_LOSS_CODES: Final = frozenset({1011, 1012, 1013, 1014})
"""Close codes (IANA's registry) that report a lost connection: a client's library got no pong, or a gateway
restarts, is too busy or has lost the other side."""

LARGE: Final = 2**20
"""The size above which an incomplete message is aborted once the server has no room."""


class Introduction(Protocol):
    """The introduction that another adapter sends for a forwarded connection."""

    @property
    def challenge(self) -> bytes:
        """The challenge, which is sent first."""

    @property
    def client(self) -> str:
        """The address of the client, once it was introduced."""

    def feed(self, data: bytes) -> bytes | None:
        """Return the bytes after the introduction; None until that is complete.

        Raises `Disconnected` if it is wrong.
        """


class PublicConnection(ServerConnection):
    """A client's connection. Its messages are not decoded: the JSON parser takes bytes and checks the UTF-8.

    `answer` answers a request that opens no WebSocket; `open_session` takes one that a session answers.
    `enter` returns whether the handshake of a WebSocket may begin; if not, it later calls `let_in` or
    `reject`. `forward` returns whether another adapter may have the session; if so, it later calls
    `give_away` or `go_on`. With an `introduction` the connection is one that another adapter forwards.

    The connection is in `coming` until it is lost, or the server removes it because its WebSocket is open.
    Bytes of incomplete messages are counted in `arriving`; all received bytes, and those of sent messages, in
    `byte_count`. `losses` spreads the work of many connections that are lost at the same time.
    """

    def __init__(
        self,
        *args: Any,
        arriving: Arriving,
        byte_count: ByteCount,
        answer: Callable[["PublicConnection", HttpRequest], Awaitable[Response]],
        coming: "set[PublicConnection]",
        open_session: Callable[[HttpSocket], None],
        losses: CallQueue,
        enter: Callable[["PublicConnection"], bool] = lambda connection: True,
        forward: Callable[["PublicConnection"], bool] = lambda connection: False,
        introduction: Callable[[], Introduction] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._open_session = open_session
        self._losses = losses
        self._enter = enter
        self._forward = forward
        self._is_delayed = False
        """Whether the handshake is delayed, by the rate limit or by the lookup of the session's adapter."""
        self._introduction = introduction() if introduction is not None else None
        self._is_introduced = introduction is None
        self.http_request: HttpRequest | None = None
        """The request, once it is complete."""
        self.key: Key | None = None
        self.tenant = ""
        """The tenant of its session; empty if each connection is a separate tenant."""
        self.selection: Selection | RefusedSession | None = None
        """The selected session, once its request was accepted."""
        self.dead_owner = ""
        """The id of the adapter that had the requested session, if its process has ended."""
        self.verdict: Verdict | None = None
        """The reason why its session cannot be resumed, if known before the lookup."""
        self.upgrade: Upgrade | None = None
        """The trace of the request, once it was accepted or refused."""
        self._is_held = False
        self._holds = 0
        """The number of holds that stop reading."""
        self.was_too_large = False
        """Whether the connection was aborted because its incomplete message had no room."""
        self.rights = ALL_RIGHTS
        """The rights of its key or of its client secret."""
        self.allowance: Allowance | None = None
        """The allowance of its address, once its request was accepted."""
        self._answer = answer
        self._coming = coming
        self._request_reader = RequestReader()
        self._exchange: HttpExchange | None = None
        self._scanner = FrameScanner()
        self._held: list[bytes | memoryview] = []
        """The parts of a frame that is collected for `when_text`."""
        self._lone: FrameHead | None = None
        """The head of that frame, or of a complete one, if no data follows it."""
        self._arriving = arriving
        self._unfinished = 0
        """The bytes of this connection that are counted in `arriving`."""
        self._byte_count = byte_count
        self._small = Bucket(SMALL_BURST, SMALL_PER_S, monotonic)
        self._flood: Verdict | None = None
        self._on_flood: Callable[[Verdict], None] = ignore_flood
        self._on_text: Callable[[bytes], bool] = ignore_text
        self._arrivals: deque[tuple[bool, float]] = deque()
        """Whether it is text, and its arrival time, for each waiting message."""
        self._is_lost = False
        self.leave: Callable[[], None] = _nothing
        """A callback that takes this connection out of its client's limit; called when it is lost."""
        self._on_lost: list[Callable[[], None]] = []

    @property
    def peer(self) -> str:
        """The client's address, as seen by this adapter or by the adapter that forwards the connection."""
        if self._introduction is not None:
            return self._introduction.client or UNKNOWN_ADDRESS
        # There is no address if the client left before its connection was accepted.
        return self.remote_address[0] if self.remote_address else UNKNOWN_ADDRESS

    @property
    def closed_with(self) -> int | None:
        """The code of the sent Close; None if none was sent."""
        sent = self.protocol.close_sent
        return sent.code if sent is not None else None

    @property
    def was_cut(self) -> bool:
        """Whether the connection was lost: no Close was sent, none arrived except one that reports a loss,
        and the client exceeded no limit."""
        received = self.protocol.close_rcvd
        if received is not None:
            return received.code in _LOSS_CODES
        return self.protocol.close_sent is None and not self.was_too_large and self._flood is None

    @property
    def was_cut_in_closing(self) -> bool:
        """Whether a normal Close was sent and none came back: the last events may never have arrived."""
        sent = self.protocol.close_sent
        return sent is not None and sent.code == CloseCode.NORMAL and self.protocol.close_rcvd is None

    def take_leave(self) -> Callable[[], None]:
        """Return `leave`, which the caller then calls in place of this connection."""
        leave, self.leave = self.leave, _nothing
        return leave

    def limit_messages(self, size: int) -> None:
        """Limit messages to `size` bytes; a larger message ends the connection."""
        self.protocol.max_message_size = size

    def hold(self, is_held: bool) -> None:
        """Set whether the session stops reading for now; pongs are not received meanwhile."""
        self._is_held = is_held
        self._holds += is_held

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the transport is gone, even if no WebSocket was opened."""
        if self._is_lost:
            callback()
        else:
            self._on_lost.append(callback)

    def when_flooding(self, callback: Callable[[Verdict], None]) -> None:
        """Call `callback` once with the reason when the frame rate limit is exceeded. All further input is
        discarded unread, and `callback` has to close the connection."""
        context = copy_context()
        self._on_flood = lambda verdict: context.run(callback, verdict)
        if self._flood is not None:
            callback(self._flood)

    def when_text(self, callback: Callable[[bytes], bool]) -> None:
        """Call `callback` with each text message of one frame when it arrives alone and none waits.

        If `callback` returns False, `receive` returns the message, as it does with all others.
        """
        context = copy_context()
        self._on_text = lambda text: context.run(callback, text)

    # ------------------------------------------------------------------------ asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Add the connection to those whose handshake is not over."""
        super().connection_made(transport)
        self._coming.add(self)
        if self._introduction is not None:
            self.transport.write(self._introduction.challenge)

    def connection_lost(self, error: Exception | None) -> None:
        """Queue the handling of the loss behind those of other connections."""
        self._losses.run(partial(self._handle_loss, error))

    def _handle_loss(self, error: Exception | None) -> None:
        self._coming.discard(self)
        super().connection_lost(error)
        if self._exchange is not None:
            self._exchange.connection_lost()
        self._is_lost = True
        self._count(0)
        while self._on_lost:
            self._on_lost.pop()()
        self._release_session()

    def _release_session(self) -> None:
        """Drop the references to the session or the HTTP exchange, which refer to this connection.

        Reference counting then frees both: a garbage collection of all sessions stops the event loop.
        """
        self._on_flood, self._on_text, self._exchange = ignore_flood, ignore_text, None
        # The library's callback refers to this connection, and the traceback of an error to the protocol.
        vars(self.protocol).pop("select_subprotocol", None)
        if self.protocol.parser_exc is not None:
            self.protocol.parser_exc.__traceback__ = None

    def data_received(self, data: bytes) -> None:
        """Read the introduction and the request, then pass frames within the limits to the library."""
        self._byte_count.received += len(data)
        if not self._is_introduced:
            self._read_introduction(data)
        elif self._exchange is not None:
            self._exchange.data_received(data)
        elif self._is_delayed:
            self._request_reader.feed(data)
        elif self.http_request is not None:
            self._receive_frames(data)
        elif (request := self._request_reader.feed(data)) is not None:
            self.http_request = request
            if request.fault is None and opens_session(request.method, request.path):
                self._hand_over(request)
            elif request.wants_websocket:
                self._is_delayed = True
                if self._enter(self):
                    self.let_in()
            else:
                self._exchange_one(request, partial(self._answer, self))

    def let_in(self) -> None:
        """Begin the handshake, or forward the connection to another adapter."""
        self._is_delayed = self._forward(self)
        if not self._is_delayed:
            self.go_on()

    def reject(self, response: Response) -> None:
        """Refuse the request for a WebSocket with an HTTP answer."""
        assert self.http_request is not None

        async def answer(request: HttpRequest) -> Response:
            return response

        self._is_delayed = False
        self._exchange_one(self.http_request, answer)

    def _exchange_one(
        self, request: HttpRequest, answer: Callable[[HttpRequest], Awaitable[Response]]
    ) -> None:
        self._exchange = HttpExchange(self.transport, request, answer, self._may_send)

    def _read_introduction(self, data: bytes) -> None:
        """Read the introduction of the client by another adapter, then the client's data."""
        assert self._introduction is not None
        try:
            rest = self._introduction.feed(data)
        except Disconnected:
            self.abort()
            return
        if rest is not None:
            self._is_introduced = True
            if rest:
                self.data_received(rest)

    def go_on(self) -> None:
        """Begin the handshake at this adapter."""
        self._is_delayed = False
        head, frames = self._request_reader.split()
        super().data_received(head)
        self._receive_frames(frames)

    def give_away(self) -> tuple[asyncio.Transport, bytes, bytes]:
        """Hand the transport over; return it with the head of the request and the bytes after that.

        The library loses the transport, which it would otherwise abort when no WebSocket opens in time.
        """
        transport, self.transport = self.transport, _DetachedTransport()
        head, rest = self._request_reader.split()
        self.connection_lost(None)
        return transport, head, rest

    def _hand_over(self, request: HttpRequest) -> None:
        """Hand the transport over to a request that a session answers."""
        transport, _, rest = self.give_away()
        self._open_session(HttpSocket(transport, request, rest, self._arriving, self._byte_count))

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keep the transport of a plain request open for the answer."""
        if self._exchange is not None:
            return self._exchange.eof_received()
        super().eof_received()
        return None

    def _receive_frames(self, data: bytes) -> None:
        """Pass whole text messages to `when_text` and other frames to the library, up to the rate limit."""
        if self._flood is not None:
            return
        scanner, flood = self._scanner, None
        part: bytes | memoryview = data
        if not scanner.skip(data):
            begin, is_next = 0, scanner.is_between
            for head in scanner.scan(data):
                if (flood := self._flood_of(head)) is not None:
                    part = data[begin : head.start]
                    break
                if self._lone is not None and self._lone.size >= SPLIT_BYTES:
                    self._held.append(memoryview(data)[begin : head.start])
                    self._hand_on(is_whole=True)
                    begin, is_next = head.start, True
                    part = memoryview(data)[begin:]
                self._lone = head if is_next and self._may_be_taken(head, data) else None
                is_next = False
        held = self._held
        held.append(part)
        if self._lone is not None and not scanner.whole and len(held) < MOST_PARTS:
            self._count(scanner.unfinished)
        else:
            self._flood = flood
            self._hand_on(is_whole=flood is None and scanner.is_between)
        if flood is None and self._unfinished > LARGE and self._arriving.is_full:
            self.was_too_large = True
            self._count(0)  # at once: the connections read next in this pass then have this room
            self.abort()

    def _may_be_taken(self, head: FrameHead, data: bytes) -> bool:
        """Return whether a frame is a whole text message that the library would accept."""
        most = min(self.protocol.max_message_size or LARGE, LARGE)
        first, second = data[head.start : head.start + 2]
        is_text = first == _TEXT_MESSAGE and bool(second & _MASKED)
        return is_text and head.size <= most and self.protocol.state is State.OPEN

    def _hand_on(self, *, is_whole: bool) -> None:
        """Pass the held data to `when_text` or to the library; with `is_whole` it ends with a frame."""
        scanner, held, lone, flood = self._scanner, self._held, self._lone, self._flood
        data = held[0] if len(held) == 1 else b"".join(held)
        self._held, self._lone = [], None
        self._count(scanner.unfinished if flood is None else 0)
        now = monotonic()
        arrivals = [(is_text, now) for is_text in scanner.whole]
        scanner.whole.clear()
        is_next = is_whole and not self._arrivals and self.protocol.state is State.OPEN
        if lone is not None and is_next and self._on_text(_payload(lone, data)):
            return
        self._arrivals.extend(arrivals)
        super().data_received(bytes(data))
        if flood is not None:
            self._on_flood(flood)

    def _flood_of(self, head: FrameHead) -> Verdict | None:
        """Return the reason if a frame exceeds a rate limit; it and all further data are then discarded."""
        small = SMALL_MESSAGE if head.is_last and head.opcode != CONTINUATION else SMALL_FRAGMENT
        if (head.is_control or head.size < small) and not self._small.take():
            return errors.flood("small frames", SMALL_BURST, EVENTS_WINDOW_S)
        return None if self._may_send(head.size) else errors.ADDRESS_FLOOD

    def _may_send(self, size: int) -> bool:
        """Return whether the rate limit of the address allows `size` more bytes, which then count."""
        frames = self.allowance.frames if self.allowance is not None else None
        return frames is None or frames.take(1 + size // COUNTED_BYTES)

    def _count(self, unfinished: int) -> None:
        self._arriving.size += unfinished - self._unfinished
        self._unfinished = unfinished

    # ----------------------------------------------------------------------------------- messages

    async def receive(self) -> Message:
        """Return the next message. Raises `Disconnected`."""
        try:
            data = await self.recv(decode=False)
        except ConnectionClosed:
            raise Disconnected from None
        is_text, arrived_at = self._arrivals.popleft()
        return Message(is_text, data, monotonic() - arrived_at, not self._arrivals)

    async def send_text(self, *parts: bytes) -> None:
        """Send UTF-8 as a text message; wait while the transport is full. Raises `Disconnected`."""
        try:
            await self.drain()
            data = b"".join(parts)
            self._byte_count.sent += len(data)
            await self.send(data, text=True)
        except (ConnectionClosed, OSError):
            raise Disconnected from None

    def write_text(self, *parts: bytes) -> bool:
        """Send UTF-8 at once, even if bytes wait in the transport; return False if it is closing."""
        if self.protocol.state is not State.OPEN or self.transport.is_closing():
            return False
        frame = b"".join((_text_head(sum(map(len, parts))), *parts))
        self._byte_count.sent += len(frame)
        self.transport.write(frame)  # as `writelines` should: see docs/decisions/0009-http-and-websocket.md
        return True

    def begin_answer(self, begun: Respond) -> None:
        """Raise an error: the answer to the request is the upgrade."""
        raise TypeError(begun)

    async def keep_alive(self, interval_s: float, timeout_s: float) -> None:
        """Ping every `interval_s` seconds; abort if no pong arrives within `timeout_s` seconds.

        While the session stops reading, no pong is awaited, since it follows unread data.

        The library's keepalive is not used: sending a ping has no deadline there, although it waits behind
        output. It also sends an unresponsive client a Close before it gives up.
        """
        try:
            while True:
                await asyncio.sleep(interval_s)
                if self._is_held:
                    continue
                holds = self._holds
                try:
                    async with asyncio.timeout(timeout_s):
                        await (await self.ping())
                except TimeoutError:
                    if self._holds == holds:
                        raise
        except TimeoutError:
            self.abort()
        except ConnectionClosed:
            pass

    async def close(self, code: int = CloseCode.NORMAL, reason: str = "") -> None:
        """Close. The Close of a flooding client is not read: after `LINGER_S` its connection is aborted."""
        if self._flood is not None:
            asyncio.get_running_loop().call_later(LINGER_S, self.abort)
        await super().close(code, reason)

    def buffered(self) -> int:
        """Return the bytes that wait in the transport."""
        return self.transport.get_write_buffer_size()

    def abort(self) -> None:
        """Abort the transport, and drop all waiting bytes."""
        self.transport.abort()


def ignore_flood(verdict: Verdict) -> None:
    """Do nothing: there is no session, or it is over."""


def ignore_text(text: bytes) -> bool:
    """Leave a message to `receive`: there is no session, or it is over."""
    return False


def _nothing() -> None:
    """Do nothing."""


class _DetachedTransport(asyncio.Transport):
    """A placeholder for a transport that was handed over."""

    def abort(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def is_closing(self) -> bool:
        """Return True: writes are impossible."""
        return True


def _text_head(size: int) -> bytes:
    """Return the header of an unmasked text message of one frame: RFC 6455, section 5.2."""
    if size < 126:
        return struct.pack("!BB", _TEXT_MESSAGE, size)
    if size < 2**16:
        return struct.pack("!BBH", _TEXT_MESSAGE, 126, size)
    return struct.pack("!BBQ", _TEXT_MESSAGE, 127, size)


def _payload(head: FrameHead, frame: bytes | memoryview) -> bytes:
    """Return the payload of a masked frame."""
    begin = head.head_size
    key = bytes(frame[begin - _KEY_BYTES : begin])
    payload: bytes = apply_mask(memoryview(frame)[begin : begin + head.size], key)
    return payload
