"""Connections of clients: requests of every method, and WebSockets as frames of bytes.

What the adapter changes inside `websockets`, which may change it without a word, is in this module alone,
and what passes its parser by in `frames`; tests/ws_adapter/web/test_websocket.py fails when it is not called.
"""

import asyncio
import re
import struct
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import copy_context
from http import HTTPStatus
from time import monotonic
from typing import Any, Final

from websockets import frames
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed, HeaderLineTooLong, RequestLineTooLong, TooManyHeaders
from websockets.frames import Frame, Opcode
from websockets.http11 import parse_headers, parse_line
from websockets.protocol import Event, Protocol, State
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

from ws_adapter.observability.tracing import Upgrade
from ws_adapter.process.byte_count import ByteCount
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import CloseCode, Verdict
from ws_adapter.protocol.wire.limits import EVENTS_WINDOW_S
from ws_adapter.web.frames import WholeFrames
from ws_adapter.web.http1 import LARGEST_BODY_BYTES, HttpRequest, unreadable
from ws_adapter.web.keys import Key
from ws_adapter.web.message import (
    SMALL_BURST,
    SMALL_FRAGMENT,
    SMALL_MESSAGE,
    SMALL_PER_S,
    Arriving,
    Disconnected,
    Message,
)
from ws_adapter.web.pieces import Pieces
from ws_adapter.web.rate_limit import Allowance, Bucket
from ws_adapter.web.routes import Misdirected, Selection, largest_body

WRITE_LIMIT: Final = 32 * 1024
"""Bytes that the transport holds before `send` waits: what is hidden there cannot be taken back."""

COUNTED_BYTES: Final = 2**15
"""A longer frame counts as several against what its address may send."""

LARGE: Final = 2**20
"""Only who is in the middle of a message longer than this is cut for want of room."""

LINGER_S: Final = 2.0
"""How long a TLS connection, of which one direction alone cannot be closed, is still read after its answer.
Others are until the client closes theirs, within the time for the opening handshake."""

_VERSIONS: Final = (b"HTTP/1.1", b"HTTP/1.0")

_METHOD: Final = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")

_MESSAGES: Final = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
_TEXT: Final = 0x80 | Opcode.TEXT


class HttpConnection(ServerConnection):
    """A connection that takes any request, so that each can have its answer, whatever else comes with it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.plain: HttpRequest | None = None
        """Its request, if that opens no WebSocket."""
        self._has_all_input = False
        self._closing: asyncio.TimerHandle | None = None
        self.protocol.parser = parse(self.protocol)
        next(self.protocol.parser)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Whoever has no more to say may still want the answer; TLS cannot be open in one direction only."""
        if self.plain is not None and self.response is None and self.transport.can_write_eof():
            self._has_all_input = True
            return True
        super().eof_received()
        return None

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.BaseProtocol."""
        super().connection_lost(error)
        if self._closing is not None:
            self._closing.cancel()

    def end_output(self, *, goes_on: bool) -> None:
        """Nothing more is sent; with `goes_on` the client may not have heard of it, and sends on."""
        if self._has_all_input:
            self.transport.close()
        elif self.transport.can_write_eof():
            with suppress(OSError, RuntimeError):
                self.transport.write_eof()
        elif goes_on or (self.plain is not None and self.plain.goes_on):
            # Closed with input that nobody has read, a socket takes the answer along.
            self._closing = self.loop.call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()


class PublicConnection(HttpConnection):
    """A connection whose messages stay undecoded: JSON is parsed from bytes, and UTF-8 is checked there.

    What has come of a message that is not whole yet is counted in `arriving`, every byte in `byte_count`. A
    request that opens no WebSocket is answered whatever else comes with it.
    """

    def __init__(self, *args: Any, arriving: Arriving, byte_count: ByteCount, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        protocol = self.protocol
        self._pieces = Pieces(protocol.reader, lambda: _room(protocol))
        protocol.reader.read_exact = self._pieces.read_exact  # type: ignore[method-assign,assignment]
        self._whole = WholeFrames()
        self.key: Key | None = None
        self.selection: Selection | Misdirected | None = None
        """What it is going to be, once its request was accepted."""
        self.upgrade: Upgrade | None = None
        """Its trace, once its request was looked at."""
        self.was_too_large = False
        """Whether it was cut because of the size of a message."""
        self._arriving = arriving
        self._byte_count = byte_count
        self.allowance: Allowance | None = None
        """That of its address, once its request was accepted."""
        self._small = Bucket(SMALL_BURST, SMALL_PER_S, monotonic)
        self._flood: Verdict | None = None
        self._on_flood: Callable[[Verdict], None] = lambda verdict: None
        self._on_text: Callable[[bytes], bool] = lambda text: False
        self.protocol.recv_frame = self._receive_frame  # type: ignore[method-assign]
        self._unfinished = 0
        self._unwanted = 0
        self._begun = Opcode.TEXT
        """What the message is that is arriving."""
        self._arrivals: deque[tuple[Opcode, float]] = deque()
        self._is_lost = False
        self._on_lost: list[Callable[[], None]] = []

    @property
    def closed_with(self) -> int | None:
        """The code of the Close that was sent, if one was."""
        sent = self.protocol.close_sent
        return sent.code if sent is not None else None

    def limit_messages(self, size: int) -> None:
        """Messages of more than `size` bytes end the connection."""
        self.protocol.max_message_size = size

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once when the transport is gone, also if no WebSocket ever opened."""
        if self._is_lost:
            callback()
        else:
            self._on_lost.append(callback)

    def when_flooding(self, callback: Callable[[Verdict], None]) -> None:
        """Calls `callback` once with the reason when more frames come than may: whatever else comes is thrown
        away unread, and it is for `callback` to have the connection closed."""
        context = copy_context()
        self._on_flood = lambda verdict: context.run(callback, verdict)
        if self._flood is not None:
            callback(self._flood)

    def when_text(self, callback: Callable[[bytes], bool]) -> None:
        """Calls `callback` with a text message of one frame as soon as it is there, if none waits before it
        and nothing came behind it; where `callback` returns False, it waits for `receive` as others do."""
        context = copy_context()
        self._on_text = lambda text: context.run(callback, text)

    def connection_lost(self, error: Exception | None) -> None:
        """See `when_lost`."""
        super().connection_lost(error)
        self._is_lost = True
        self._count(0)
        while self._on_lost:
            self._on_lost.pop()()

    def data_received(self, data: bytes) -> None:
        """Cuts a client in the middle of a large message when too much of such has come from all, and one
        that does not stop sending what nobody wants."""
        self._byte_count.received += len(data)
        if self.plain is not None:
            self._unwanted += len(data)
            if self._unwanted > LARGEST_BODY_BYTES or not self._may_send(len(data)):
                self.abort()
        else:
            self._count(self._unfinished + len(data))
        was_flooding = self._flood is not None
        if rest := self._take_whole(data):
            super().data_received(rest)
        if self._flood is not None and not was_flooding:
            self._on_flood(self._flood)
        if self._unfinished > LARGE and self._arriving.is_full:
            self.was_too_large = True
            self._count(0)  # at once: who is read next in this turn of the event loop has this room
            self.abort()

    def _take_whole(self, data: bytes) -> bytes:
        """Takes what the library's parser is not needed for; returns what is left for it, which begins a
        frame."""
        protocol = self.protocol
        while data:
            if (
                protocol.state is not State.OPEN
                or self._flood is not None
                or protocol.reader.buffer
                or protocol.current_size is not None
                or not self._pieces.is_between
            ):
                return self._whole.give_back() + data
            text, data = self._whole.take(data, protocol.max_message_size)
            if text is None:
                return data
            if not self._counts(len(text), SMALL_MESSAGE):
                continue
            self._count(0)
            if data or self._arrivals or not self._on_text(text):
                self._arrived(Opcode.TEXT)
                self.recv_messages.put(Frame(Opcode.TEXT, text))
        return b""

    def _receive_frame(self, frame: Frame) -> None:
        """Counts a frame before the library does anything about it, within what came at once: a ping is six
        bytes, and 40,000 of them would be a second of the event loop."""
        small = SMALL_MESSAGE if frame.fin and frame.opcode is not Opcode.CONT else SMALL_FRAGMENT
        size = len(frame.data)
        if self._counts(size, small if frame.opcode in _MESSAGES else size + 1):
            ServerProtocol.recv_frame(self.protocol, frame)

    def _counts(self, size: int, small: int) -> bool:
        """Whether a frame may come, small if under `small` bytes; if not, all that follows is thrown away."""
        if size < small and not self._small.take():
            self._flood = errors.flood("small frames", SMALL_BURST, EVENTS_WINDOW_S)
        elif not self._may_send(size):
            self._flood = errors.ADDRESS_FLOOD
        else:
            return True
        self.protocol.parser = _throw_away(self.protocol)
        next(self.protocol.parser)
        return False

    def _may_send(self, size: int) -> bool:
        """Whether so many bytes more may come from this address; if so, they are counted."""
        frames = self.allowance.frames if self.allowance is not None else None
        return frames is None or frames.take(1 + size // COUNTED_BYTES)

    async def close(self, code: int = CloseCode.NORMAL, reason: str = "") -> None:
        """Closes; who floods is not waited for, since its Close would not be read."""
        if self._flood is None:
            await super().close(code, reason)
        else:
            self.protocol.fail(code, reason)
            self.send_data()
            try:
                async with asyncio.timeout(self.close_timeout):
                    await self.wait_closed()
            except TimeoutError:
                self.abort()

    def _count(self, unfinished: int) -> None:
        self._arriving.size += unfinished - self._unfinished
        self._unfinished = unfinished

    async def keepalive(self) -> None:
        """Pings every `ping_interval`; cuts a client from which no pong comes within `ping_timeout`.

        The library waits without end for room to send a ping to a client that has gone while output waited
        for it, and sends a Close, which nobody reads, to one that is silent.
        """
        assert self.ping_interval is not None
        try:
            while True:
                await asyncio.sleep(self.ping_interval)
                async with asyncio.timeout(self.ping_timeout):
                    await (await self.ping())
        except TimeoutError:
            self.abort()
        except ConnectionClosed:
            pass

    def send_data(self) -> None:
        """Writes all that is due at once, and nothing to a client that has gone.

        The library writes each frame by itself: the answers to a flood of pings would be as many system
        calls, and as many lines in the log once the client does not take them.
        """
        due = self.protocol.data_to_send()
        if self.transport.is_closing():
            return
        if data := due[0] if len(due) == 1 else b"".join(due):
            self._byte_count.sent += len(data)
            self.transport.write(data)
        if b"" in due:  # which stands for the end of the stream
            self.end_output(goes_on=self._flood is not None)

    def process_event(self, event: Event) -> None:
        """Remembers of each message when it came, and whether it is text, which its bytes do not tell."""
        if isinstance(event, HttpRequest):
            self.plain = None if event.wants_websocket else event
            self._count(0)
        if isinstance(event, Frame) and event.opcode in _MESSAGES:
            if event.opcode is not Opcode.CONT:
                self._begun = event.opcode
            if event.fin:
                self._arrived(self._begun)
        super().process_event(event)

    def _arrived(self, kind: Opcode) -> None:
        """A message is whole."""
        self._arrivals.append((kind, monotonic()))
        self._count(0)

    async def receive(self) -> Message:
        """The next message. Raises `Disconnected`."""
        try:
            data = await self.recv(decode=False)
        except ConnectionClosed:
            raise Disconnected from None
        opcode, arrived_at = self._arrivals.popleft()
        return Message(opcode is Opcode.TEXT, data, monotonic() - arrived_at, not self._arrivals)

    async def send_text(self, *parts: bytes) -> None:
        """Sends UTF-8 as a text message; waits while the transport is full. Raises `Disconnected`."""
        try:
            await self.drain()
            if not self.write_text(*parts) and self.state is not State.OPEN:
                await self.send(b"".join(parts), text=True)  # which knows how to fail
            await self.drain()
        except (ConnectionClosed, OSError):
            raise Disconnected from None

    def write_text(self, *parts: bytes) -> bool:
        """The same at once, whatever waits in the transport; False if the connection is about to end."""
        if self.protocol.state is not State.OPEN or self.transport.is_closing():
            return False
        # The library copies a frame twice before it is written.
        frame = b"".join((_text_head(sum(map(len, parts))), *parts))
        self._byte_count.sent += len(frame)
        self.transport.write(frame)  # as `writelines` should: see docs/decisions.md
        return True

    def buffered(self) -> int:
        """Bytes that wait in the transport."""
        return self.transport.get_write_buffer_size()

    def abort(self) -> None:
        """Cuts the transport, whatever waits in it."""
        self.transport.abort()


def _room(protocol: Protocol) -> int | None:
    """Bytes that the next frame of a message may have; None without a limit."""
    most = protocol.max_message_size
    return None if most is None else most - (protocol.current_size or 0)


def parse(protocol: ServerProtocol) -> Generator[None]:
    """Takes the place of `ServerProtocol.parse`, which takes it again once the first event is there: an
    `HttpRequest`. Frames follow."""
    reader = protocol.reader
    try:
        request = yield from _read_request(reader)
    except EOFError:
        reader.discard()
    else:
        protocol.events.append(request)
        while not request.wants_websocket and not (yield from reader.at_eof()):
            reader.discard()
    protocol.parser = Protocol.parse(protocol)
    next(protocol.parser)
    yield


def _read_request(reader: StreamReader) -> Generator[None, None, HttpRequest]:
    """Raises `EOFError` if the stream ends within the request."""
    try:
        while not reader.buffer and not reader.eof:
            yield
        if reader.buffer and not _METHOD.match(reader.buffer[:1]):
            return unreadable(HTTPStatus.BAD_REQUEST)  # such as TLS, whose first line may never end
        line = yield from parse_line(reader.read_line, RequestLineTooLong)
        method, target, version = line.split(b" ", 2)
        if version not in _VERSIONS:
            is_http = version.startswith(b"HTTP/")
            return unreadable(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED if is_http else HTTPStatus.BAD_REQUEST)
        if not _METHOD.fullmatch(method):
            return unreadable(HTTPStatus.BAD_REQUEST)
        headers = yield from parse_headers(reader.read_line)
        if not all(_LENGTH.fullmatch(length) for length in headers.get_all("Content-Length")):
            return unreadable(HTTPStatus.BAD_REQUEST)
        request = HttpRequest(
            target.decode("ascii"), headers, method.decode("ascii"), version.decode("ascii")
        )
        if request.size <= largest_body(request.method, request.path):
            # That of the class: the reader's own gives frames in pieces.
            request.content = bytes((yield from StreamReader.read_exact(reader, request.size)))
        return request
    except RequestLineTooLong:
        return unreadable(HTTPStatus.REQUEST_URI_TOO_LONG)
    except (HeaderLineTooLong, TooManyHeaders):
        return unreadable(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    except EOFError:
        if reader.eof:
            raise
        return unreadable(HTTPStatus.BAD_REQUEST)  # which the library raises for a line without CR, too
    except ValueError:
        return unreadable(HTTPStatus.BAD_REQUEST)


def _throw_away(protocol: Protocol) -> Generator[None]:
    """Takes the place of a parser: reads nothing of what comes, up to the end of the stream."""
    while not (yield from protocol.reader.at_eof()):
        protocol.reader.discard()
    protocol.fail(frames.CloseCode.ABNORMAL_CLOSURE)
    yield


def _text_head(size: int) -> bytes:
    """What stands before an unmasked text message of one frame: RFC 6455, section 5.2."""
    if size < 126:
        return struct.pack("!BB", _TEXT, size)
    return struct.pack("!BBH", _TEXT, 126, size) if size < 2**16 else struct.pack("!BBQ", _TEXT, 127, size)
