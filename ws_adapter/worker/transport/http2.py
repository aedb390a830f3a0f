"""One HTTP/2 connection to a worker, seen from its client.

DATA, WINDOW_UPDATE and GOAWAY are read and written here, all other frames by `http2_control`.
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Sequence
from typing import Final, cast

from h2.errors import ErrorCodes
from h2.events import Event, RemoteSettingsChanged, ResponseReceived, StreamReset, TrailersReceived
from h2.exceptions import ProtocolError

from ws_adapter.process.byte_count import ByteCount
from ws_adapter.worker.transport.http2_control import MAX_FRAME, Control, Headers
from ws_adapter.worker.transport.http2_openings import Openings
from ws_adapter.worker.transport.http2_stream import Part, Stream, StreamRefused
from ws_adapter.worker.transport.keepalive import Keepalive

logger = logging.getLogger(__name__)

HANG_UP_S: Final = 5.0
"""How long the last words of a connection may take to leave."""

STREAM_WINDOW: Final = 2**20
CONNECTION_WINDOW: Final = 2**24
"""Bytes that a worker may send ahead. What comes is taken at once, so they bound what is on the way."""

WRITE_AHEAD: Final = 2**18
"""Bytes in the transport at which the streams keep what they have."""

_BUFFER: Final = 2**18
_FLUSH: Final = 2**16
"""Bytes that do not wait for more to be written."""
_MAX_WINDOW: Final = 2**31 - 1
_NUMBER: Final = 2**31 - 1
"""Of a stream; the bit above is reserved."""

_HEAD: Final = struct.Struct("!LBL")
"""Of a frame: the length of its body with its kind behind it, flags, and the number of its stream."""
_UPDATE: Final = struct.Struct("!LBLL")
_INCREMENT: Final = struct.Struct("!L")
_HEAD_BYTES: Final = _HEAD.size
_DATA, _GOAWAY, _WINDOW_UPDATE = 0, 7, 8
_UPDATE_HEAD: Final = _INCREMENT.size << 8 | _WINDOW_UPDATE
_LONGEST_HEAD: Final = MAX_FRAME << 8 | 0xFF
_END_STREAM, _PADDED = 1, 8


class ConnectionBroken(Exception):
    """The worker does not keep to the protocol; `code` tells it how."""

    def __init__(self, code: ErrorCodes, text: str) -> None:
        super().__init__(text)
        self.code = code


class Connection(asyncio.BufferedProtocol):
    """Open from `connection_made` to `connection_lost`; `on_lost` is called once then."""

    def __init__(self, on_lost: Callable[["Connection"], None], byte_count: ByteCount) -> None:
        """What is read and written is counted in `byte_count`."""
        self._on_lost = on_lost
        self._byte_count = byte_count
        self._control = Control()
        self._transport: asyncio.Transport | None = None
        self._is_over = True
        self.lost_by: Exception | None = None
        """Why it ended, unless it was closed."""
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, Stream] = {}
        self._openings = Openings(self._has_room, self._open)
        self._has_settings = asyncio.Event()
        self._is_leaving = False
        self._buffer = memoryview(bytearray(_BUFFER))
        self._filled = 0
        self._credit = 0
        self._window = self._stream_window = self._control.window
        self._frame_size = self._control.frame_size
        self._is_paused = False
        self._blocked: dict[Stream, None] = {}
        """Streams with something to send, once there is room on the connection."""
        self._parts: list[Part] = []
        """What is written before this turn of the event loop is over, `_size` bytes."""
        self._size = 0
        self._keepalive = Keepalive(lambda: bool(self._streams), self._ping, self.abort)
        self._cutting: asyncio.TimerHandle | None = None

    @property
    def is_usable(self) -> bool:
        """Whether it takes new streams."""
        return not self._is_over and not self._is_leaving

    @property
    def spoken(self) -> str | None:
        """What was agreed on over TLS, by ALPN."""
        tls = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        return tls.selected_alpn_protocol() if tls is not None else None

    async def settled(self) -> bool:
        """Waits until the worker has said what it allows; whether it takes streams then."""
        await self._has_settings.wait()
        return self.is_usable

    async def open(self, stream: Stream, headers: Headers, *, again: bool = False) -> None:
        """Sends `headers` as a new request once the worker takes one more stream; `again` after a refusal.

        Raises `StreamRefused`. On cancellation the stream is reset.
        """
        await self._openings.wait(stream, headers, again=again)

    def close(self) -> None:
        """Ends the connection and every stream on it."""
        if not self._is_over:
            self._control.close()
            self._hang_up()

    def abort(self) -> None:
        """Cuts the connection."""
        if self._transport is not None:
            self._stop()
            self._transport.abort()

    def _has_room(self) -> bool:
        """Also for streams that are then refused."""
        return not self.is_usable or len(self._streams) < self._control.most_streams

    def _open(self, stream: Stream, headers: Headers) -> StreamRefused | None:
        if not self.is_usable:
            return StreamRefused("the worker is going away")
        try:
            number = self._control.open(headers)
        except ProtocolError as error:
            return StreamRefused(str(error))
        stream.connection, stream.number, stream.window = self, number, self._stream_window
        self._streams[number] = stream
        self._put_due()
        return None

    # ---------------------------------------------------------------------------------------- sending

    def send(self, stream: Stream, size: int, *parts: bytes) -> None:
        """Sends `parts`, `size` bytes in all, as soon as the worker's windows and the transport allow it."""
        if stream.is_ending:
            return
        is_free = not (stream.waiting or self._is_paused or self._is_over)
        if is_free and size <= stream.window and size <= self._window and size <= self._frame_size:
            self._put_data(stream, size, parts)
            return
        stream.waiting.append((size, parts))
        if len(stream.waiting) == 1:
            self._pump(stream)

    def end(self, stream: Stream) -> None:
        """Nothing more will be sent."""
        if not stream.is_ending:
            stream.is_ending = True
            self._pump(stream)

    def _pump(self, stream: Stream) -> None:
        """Sends what waits in `stream`, as far as the windows and the transport allow."""
        if self._is_over:
            return
        waiting = stream.waiting
        while waiting:
            if self._window <= 0 or self._is_paused:
                self._blocked[stream] = None
                return
            size, parts = waiting[0]
            room = min(stream.window, self._window, self._frame_size)
            if size <= room:
                del waiting[0]
            elif room <= 0:
                return
            else:
                parts, rest = _cut(parts, room)
                waiting[0], size = (size - room, rest), room
            self._put_data(stream, size, parts)
        if stream.is_ending and not stream.has_ended:
            stream.has_ended = True
            self._control.end(stream.number)
            self._put_due()

    def reset(self, stream: Stream, code: ErrorCodes) -> None:
        """Ends `stream` without waiting for its answer."""
        if not self._is_over:
            self._control.reset(stream.number, code)
            self._put_due()
        self._forget(stream)

    def pause_writing(self) -> None:
        """See asyncio.BaseProtocol."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """See asyncio.BaseProtocol."""
        self._is_paused = False
        self._pump_blocked()

    def _pump_blocked(self) -> None:
        """In the order in which they were blocked, until they are again."""
        while self._blocked and self._window > 0 and not self._is_paused:
            stream = next(iter(self._blocked))
            del self._blocked[stream]
            self._pump(stream)

    def _put_due(self) -> None:
        if data := self._control.due():
            self._put(len(data), data)

    def _give_credit(self, number: int, size: int) -> None:
        self._put(_UPDATE.size, _UPDATE.pack(_UPDATE_HEAD, 0, number, size))

    def _put_data(self, stream: Stream, size: int, parts: Sequence[Part]) -> None:
        """One frame of `size` bytes, for which there is room; they must stay as they are."""
        stream.window -= size
        self._window -= size
        self._put(_HEAD_BYTES + size, _HEAD.pack(size << 8 | _DATA, 0, stream.number), *parts)

    def _put(self, size: int, *parts: Part) -> None:
        """Writes `parts`, `size` bytes in all, soon, together with what else comes, in few system calls."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts += parts
        self._size += size
        if self._size >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        parts, size, self._parts, self._size = self._parts, self._size, [], 0
        if parts and self._transport is not None and not self._is_over:
            self._byte_count.sent += size
            self._transport.write(b"".join(parts))  # as `writelines` should: see docs/decisions.md

    # -------------------------------------------------------------------------------------- receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.BaseProtocol."""
        self._is_over = False
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=WRITE_AHEAD)
        self._control.begin(CONNECTION_WINDOW, STREAM_WINDOW)
        self._put_due()
        self._keepalive.begin()

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.BaseProtocol."""
        self._stop()
        self.lost_by = self.lost_by or error
        if self._cutting is not None:
            self._cutting.cancel()
        self._has_settings.set()
        why = f"the connection to the worker is lost: {error or 'it was closed'}"
        for stream in list(self._streams.values()):
            self._break(stream, why)
        self._on_lost(self)

    def get_buffer(self, size_hint: int) -> memoryview:
        """See asyncio.BufferedProtocol."""
        return self._buffer[self._filled :]

    def buffer_updated(self, size: int) -> None:
        """Takes every whole frame out of the buffer."""
        self._keepalive.heard_at = self._loop.time()
        self._byte_count.received += size
        buffer, filled, begin = self._buffer, self._filled + size, 0
        unpack = _HEAD.unpack_from
        try:
            while (body := begin + _HEAD_BYTES) <= filled:
                head, flags, number = unpack(buffer, begin)
                if head > _LONGEST_HEAD:
                    raise ConnectionBroken(ErrorCodes.FRAME_SIZE_ERROR, f"a frame has {head >> 8} bytes")
                if (end := body + (head >> 8)) > filled:
                    break
                kind = head & 0xFF
                if kind == _DATA:
                    self._data_received(number & _NUMBER, flags, buffer[body:end])
                elif head == _UPDATE_HEAD:
                    self._window_opened(number & _NUMBER, *_INCREMENT.unpack_from(buffer, body))
                elif kind == _WINDOW_UPDATE:
                    text = "a WINDOW_UPDATE does not have 4 bytes"
                    raise ConnectionBroken(ErrorCodes.FRAME_SIZE_ERROR, text)
                elif kind == _GOAWAY:
                    self._worker_leaves(buffer[body:end])
                else:
                    self._control_received(bytes(buffer[begin:end]))
                begin = end
            if self._blocked:
                self._pump_blocked()
        except (ConnectionBroken, ProtocolError) as error:
            self._give_up(error)
            return
        if 0 < begin < filled:
            buffer[: filled - begin] = buffer[begin:filled]
        self._filled = filled - begin

    def _data_received(self, number: int, flags: int, data: memoryview) -> None:
        length = len(data)
        if flags & _PADDED:
            if not length or data[0] >= length:
                raise ConnectionBroken(ErrorCodes.PROTOCOL_ERROR, "a frame is shorter than its padding")
            data = data[1 : length - data[0]]
        self._credit += length
        if self._credit >= CONNECTION_WINDOW // 2:
            self._give_credit(0, self._credit)
            self._credit = 0
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.data_received(data)
        if stream.connection is None:
            return
        if flags & _END_STREAM:
            self.reset(stream, ErrorCodes.NO_ERROR)
            stream.broken("the worker ended a call without a status")
            return
        stream.credit += length
        if stream.credit >= STREAM_WINDOW // 2:
            self._give_credit(number, stream.credit)
            stream.credit = 0

    def _window_opened(self, number: int, more: int) -> None:
        """What waits for it goes when all is read that has come."""
        more &= _MAX_WINDOW  # the bit above is reserved
        if not more:
            raise ConnectionBroken(ErrorCodes.PROTOCOL_ERROR, "a window is opened by 0 bytes")
        if not number:
            self._window = window = self._window + more
        elif (stream := self._streams.get(number)) is not None:
            stream.window = window = stream.window + more
            if stream.waiting:
                self._blocked[stream] = None
        else:
            return
        if window > _MAX_WINDOW:
            raise ConnectionBroken(ErrorCodes.FLOW_CONTROL_ERROR, "a window is larger than 2 GiB")

    def _worker_leaves(self, body: memoryview) -> None:
        if len(body) < 8:
            raise ConnectionBroken(ErrorCodes.FRAME_SIZE_ERROR, "a GOAWAY has less than 8 bytes")
        self._is_leaving = True
        last = int.from_bytes(body[:4]) & _NUMBER
        for stream in [stream for number, stream in self._streams.items() if number > last]:
            self._break(stream, "the worker went away before it took the call")
        self._openings.look()
        self._close_if_done()

    def _control_received(self, frame: bytes) -> None:
        events = self._control.receive(frame)
        self._put_due()  # new settings are acknowledged before anything is sent by them
        for event in events:
            self._happened(event)

    def _happened(self, event: Event) -> None:
        match event:
            case ResponseReceived() | TrailersReceived():
                stream = self._streams.get(event.stream_id)
                if stream is not None:
                    is_end = event.stream_ended is not None
                    if is_end and stream.has_ended:
                        self._forget(stream)
                    elif is_end:
                        self.reset(stream, ErrorCodes.NO_ERROR)  # what is still to be sent is not asked for
                    stream.headers_received(dict(event.headers), is_end)
            case StreamReset():
                stream = self._streams.get(event.stream_id)
                if stream is not None and event.error_code == ErrorCodes.REFUSED_STREAM:
                    self._openings.pause()
                    self._forget(stream)
                    stream.refused()
                elif stream is not None:
                    self._break(stream, f"the worker reset a call with the code {event.error_code}")
            case RemoteSettingsChanged():
                self._settings_changed()

    def _settings_changed(self) -> None:
        wider = self._control.window - self._stream_window
        self._stream_window += wider
        self._frame_size = self._control.frame_size
        for stream in list(self._streams.values()):
            stream.window += wider
            self._pump(stream)
        self._has_settings.set()
        self._openings.look()

    def _break(self, stream: Stream, why: str) -> None:
        self._forget(stream)
        stream.broken(why)

    def _forget(self, stream: Stream) -> None:
        del self._streams[stream.number]
        stream.connection = None
        stream.waiting.clear()
        self._blocked.pop(stream, None)
        self._openings.look()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_leaving and not self._streams:
            self._loop.call_soon(self.close)

    def _give_up(self, error: Exception) -> None:
        logger.error("the connection to a worker is given up: %s", error)
        self.lost_by = self.lost_by or error
        if not self._is_over:
            if isinstance(error, ConnectionBroken):  # of its own errors h2 has told the worker
                self._control.close(error.code)
            self._hang_up()

    def _hang_up(self) -> None:
        assert self._transport is not None
        self._put_due()
        self._stop()
        if self.spoken is not None:
            # TLS would wait for the last word of the worker, who seldom says one; HTTP/2 has said ours.
            self._transport.abort()
            return
        self._transport.close()
        self._cutting = self._loop.call_later(HANG_UP_S, self._transport.abort)

    def _stop(self) -> None:
        """Nothing is sent or asked any more, and no stream opened."""
        self._flush()
        self._is_over = True
        self._keepalive.stop()
        self._openings.look()

    def _ping(self) -> None:
        self._control.ping()
        self._put_due()


def _cut(parts: Sequence[Part], room: int) -> tuple[list[Part], list[Part]]:
    """The first `room` bytes of longer `parts`, and the rest; neither is copied."""
    taken: list[Part] = []
    for number, part in enumerate(parts):
        if len(part) > room:
            whole = memoryview(part)
            return [*taken, whole[:room]], [whole[room:], *parts[number + 1 :]]
        taken.append(part)
        room -= len(part)
    return taken, []
