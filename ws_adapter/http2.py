"""One HTTP/2 connection to a worker, seen from its client.

h2 minds the connection: headers, settings, pings and resets. Three kinds of frames pass it by. DATA and
WINDOW_UPDATE are nearly all of the traffic and cost a fraction here. After a GOAWAY h2 would hear nothing
more of the streams that go on.
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import Event, RemoteSettingsChanged, ResponseReceived, StreamReset, TrailersReceived
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from ws_adapter.traffic import Traffic

logger = logging.getLogger(__name__)

KEEPALIVE_S: Final = 10.0
"""After so long a silence a worker with open streams is asked whether it is there."""

KEEPALIVE_TIMEOUT_S: Final = 5.0
"""How long it may take to say anything then."""

STREAM_WINDOW: Final = 2**20
CONNECTION_WINDOW: Final = 2**24
"""Bytes that a worker may send ahead. What comes is taken at once, so they bound what is on the way."""

WRITE_AHEAD: Final = 2**18
"""Bytes in the transport at which the streams keep what they have."""

_BUFFER: Final = 2**18
_FLUSH: Final = 2**16
_MAX_FRAME: Final = 2**17
_MAX_WINDOW: Final = 2**31 - 1
_NUMBER: Final = 2**31 - 1
"""Of a stream; the bit above is reserved."""

_HEAD: Final = struct.Struct("!BHBBL")
_UPDATE: Final = struct.Struct("!BHBBLL")
_DATA, _GOAWAY, _WINDOW_UPDATE = 0, 7, 8
_END_STREAM, _PADDED = 1, 8

Headers: TypeAlias = Sequence[tuple[str, str]]
Received: TypeAlias = dict[bytes, bytes]


class ConnectionBroken(Exception):
    """The worker does not keep to the protocol; `code` tells it how."""

    def __init__(self, code: ErrorCodes, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamRefused(Exception):
    """The connection takes no further stream now."""


class Stream:
    """One request and its answer. Those who use it say by overriding what is to be done with what comes."""

    __slots__ = ("connection", "credit", "has_ended", "is_ending", "number", "waiting", "window")

    def __init__(self) -> None:
        self.connection: Connection | None = None
        """None before it is opened, and after its end."""
        self.number = 0
        self.window = 0
        self.credit = 0
        self.is_ending = False
        self.has_ended = False
        self.waiting: list[bytes | memoryview] = []
        """What was given to `send` and has not left yet, in whole or in part."""

    def headers_received(self, headers: Received, is_end: bool) -> None:
        """The headers of the answer, or its trailers."""

    def data_received(self, data: memoryview) -> None:
        """A part of the body; `data` is valid until this returns."""

    def broken(self, why: str) -> None:
        """It ended without trailers."""

    def send(self, data: bytes) -> None:
        """Sends `data` as soon as the worker's windows allow it."""
        if self.connection is not None and not self.is_ending:
            self.waiting.append(data)
            self.connection.pump(self)

    def end(self) -> None:
        """Nothing more will be sent."""
        if self.connection is not None and not self.is_ending:
            self.is_ending = True
            self.connection.pump(self)

    def reset(self) -> None:
        """Ends it on both sides; nothing is received any more."""
        if self.connection is not None:
            self.connection.reset(self, ErrorCodes.CANCEL)


class Connection(asyncio.BufferedProtocol):
    """Open from `connection_made` to `connection_lost`; `on_lost` is called once then."""

    def __init__(self, on_lost: Callable[["Connection"], None], traffic: Traffic) -> None:
        """What is read and written is counted in `traffic`."""
        self._on_lost = on_lost
        self._traffic = traffic
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._transport: asyncio.Transport | None = None
        self._is_over = True
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, Stream] = {}
        self._is_leaving = False
        self._buffer = memoryview(bytearray(_BUFFER))
        self._filled = 0
        self._credit = 0
        self._window = self._h2.remote_settings.initial_window_size
        self._stream_window = self._window
        self._frame_size = self._h2.max_outbound_frame_size
        self._is_paused = False
        self._blocked: dict[Stream, None] = {}
        self._out: list[bytes | memoryview] = []
        self._out_size = 0
        self._is_flush_due = False
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_usable(self) -> bool:
        """Whether it takes new streams."""
        return not self._is_over and not self._is_leaving

    def open(self, stream: Stream, headers: Headers) -> None:
        """Sends `headers` as a new request. Raises `StreamRefused`."""
        if not self.is_usable:
            raise StreamRefused("the worker is going away")
        try:
            number = self._h2.get_next_available_stream_id()
            self._h2.send_headers(number, headers)
        except ProtocolError as error:
            raise StreamRefused(str(error)) from None
        stream.connection, stream.number, stream.window = self, number, self._stream_window
        self._streams[number] = stream
        self._put_h2()

    def close(self) -> None:
        """Ends the connection and every stream on it."""
        if not self._is_over:
            self._h2.close_connection()
            self._hang_up()

    def abort(self) -> None:
        """Cuts the connection."""
        if self._transport is not None:
            self._is_over = True
            self._transport.abort()

    # ---------------------------------------------------------------------------------------- sending

    def pump(self, stream: Stream) -> None:
        """Sends what waits in `stream`, as far as the windows and the transport allow."""
        if self._is_over:
            return
        waiting = stream.waiting
        while waiting:
            if self._window <= 0 or self._is_paused:
                self._blocked[stream] = None
                return
            room = min(stream.window, self._window, self._frame_size)
            if room <= 0:
                return
            data = waiting[0]
            size = len(data)
            if size > room:
                whole, size = memoryview(data), room
                data, waiting[0] = whole[:room], whole[room:]
            else:
                del waiting[0]
            stream.window -= size
            self._window -= size
            self._out += _HEAD.pack(size >> 16, size & 0xFFFF, _DATA, 0, stream.number), data
            self._out_size += _HEAD.size + size
            if self._out_size >= _FLUSH:
                self._flush()
            elif not self._is_flush_due:
                self._flush_soon()
        if stream.is_ending and not stream.has_ended:
            stream.has_ended = True
            self._h2.end_stream(stream.number)
            self._put_h2()

    def reset(self, stream: Stream, code: ErrorCodes) -> None:
        """Ends `stream` without waiting for its answer."""
        self._forget(stream)
        if not self._is_over:
            self._h2.reset_stream(stream.number, code)
            self._put_h2()

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
            self.pump(stream)

    def _put(self, data: bytes) -> None:
        self._out.append(data)
        self._out_size += len(data)
        self._flush_soon()

    def _put_h2(self) -> None:
        if data := self._h2.data_to_send():
            self._put(data)

    def _give_credit(self, number: int, size: int) -> None:
        self._put(_UPDATE.pack(0, 4, _WINDOW_UPDATE, 0, number, size))

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_due)

    def _flush_due(self) -> None:
        self._is_flush_due = False
        self._flush()

    def _flush(self) -> None:
        self._traffic.sent += self._out_size
        out, self._out, self._out_size = self._out, [], 0
        if out and self._transport is not None and not self._is_over:
            self._transport.writelines(out)

    # -------------------------------------------------------------------------------------- receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.BaseProtocol."""
        self._is_over = False
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=WRITE_AHEAD)
        values = {
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            SettingCodes.MAX_FRAME_SIZE: _MAX_FRAME,
            SettingCodes.MAX_HEADER_LIST_SIZE: H2Connection.DEFAULT_MAX_HEADER_LIST_SIZE,
        }
        self._h2.local_settings = Settings(client=True, initial_values=values)
        self._h2.max_inbound_frame_size = _MAX_FRAME
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW - self._window)
        self._put_h2()
        self._timer = self._loop.call_later(KEEPALIVE_S, self._keep_alive)

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.BaseProtocol."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        why = f"the connection to the worker is lost: {error or 'it was closed'}"
        for stream in list(self._streams.values()):
            self._break(stream, why)
        self._on_lost(self)

    def get_buffer(self, size_hint: int) -> memoryview:
        """See asyncio.BufferedProtocol."""
        return self._buffer[self._filled :]

    def buffer_updated(self, size: int) -> None:
        """Takes every whole frame out of the buffer."""
        self._heard_at = self._loop.time()
        self._traffic.received += size
        filled = self._filled + size
        begin = 0
        try:
            while filled - begin >= _HEAD.size:
                high, low, kind, flags, number = _HEAD.unpack_from(self._buffer, begin)
                length = high << 16 | low
                if length > _MAX_FRAME:
                    raise ConnectionBroken(ErrorCodes.FRAME_SIZE_ERROR, f"a frame has {length} bytes")
                body = begin + _HEAD.size
                end = body + length
                if end > filled:
                    break
                number &= _NUMBER
                if kind == _DATA:
                    self._data_received(number, flags, self._buffer[body:end])
                elif kind == _WINDOW_UPDATE:
                    self._window_opened(number, self._buffer[body:end])
                elif kind == _GOAWAY:
                    self._worker_leaves(self._buffer[body:end])
                else:
                    self._h2_received(bytes(self._buffer[begin:end]))
                begin = end
        except (ConnectionBroken, ProtocolError) as error:
            self._give_up(error)
            return
        if begin:
            self._buffer[: filled - begin] = self._buffer[begin:filled]
        self._filled = filled - begin

    def _data_received(self, number: int, flags: int, data: memoryview) -> None:
        length = len(data)
        stream = self._streams.get(number)
        if flags & _PADDED:
            if not length or data[0] >= length:
                raise ConnectionBroken(ErrorCodes.PROTOCOL_ERROR, "a frame is shorter than its padding")
            data = data[1 : length - data[0]]
        self._credit += length
        if self._credit >= CONNECTION_WINDOW // 2:
            self._give_credit(0, self._credit)
            self._credit = 0
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

    def _window_opened(self, number: int, body: memoryview) -> None:
        if len(body) != 4:
            raise ConnectionBroken(ErrorCodes.FRAME_SIZE_ERROR, "a WINDOW_UPDATE does not have 4 bytes")
        more = int.from_bytes(body) & _MAX_WINDOW
        stream = self._streams.get(number)
        if not more:
            raise ConnectionBroken(ErrorCodes.PROTOCOL_ERROR, "a window is opened by 0 bytes")
        if not number:
            self._window += more
            self._pump_blocked()
        elif stream is not None:
            stream.window += more
            if stream.waiting:
                self.pump(stream)
        if self._window > _MAX_WINDOW or (stream is not None and stream.window > _MAX_WINDOW):
            raise ConnectionBroken(ErrorCodes.FLOW_CONTROL_ERROR, "a window is larger than 2 GiB")

    def _worker_leaves(self, body: memoryview) -> None:
        if len(body) < 8:
            raise ConnectionBroken(ErrorCodes.FRAME_SIZE_ERROR, "a GOAWAY has less than 8 bytes")
        self._is_leaving = True
        last = int.from_bytes(body[:4]) & _NUMBER
        for stream in [stream for number, stream in self._streams.items() if number > last]:
            self._break(stream, "the worker went away before it took the call")
        self._close_if_done()

    def _h2_received(self, frame: bytes) -> None:
        events = self._h2.receive_data(frame)
        self._put_h2()  # new settings are acknowledged before anything is sent by them
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
                if stream is not None:
                    self._break(stream, f"the worker reset a call with the code {event.error_code}")
            case RemoteSettingsChanged():
                wider = self._h2.remote_settings.initial_window_size - self._stream_window
                self._stream_window += wider
                self._frame_size = self._h2.max_outbound_frame_size
                for stream in list(self._streams.values()):
                    stream.window += wider
                    self.pump(stream)

    def _break(self, stream: Stream, why: str) -> None:
        self._forget(stream)
        stream.broken(why)

    def _forget(self, stream: Stream) -> None:
        del self._streams[stream.number]
        stream.connection = None
        stream.waiting.clear()
        self._blocked.pop(stream, None)
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_leaving and not self._streams:
            self._loop.call_soon(self.close)

    def _give_up(self, error: Exception) -> None:
        logger.error("the connection to a worker is given up: %s", error)
        if not self._is_over:
            if isinstance(error, ConnectionBroken):  # of its own errors h2 has told the worker
                self._h2.close_connection(error.code)
            self._hang_up()

    def _hang_up(self) -> None:
        assert self._transport is not None
        self._put_h2()
        self._flush()
        self._is_over = True
        self._transport.close()
        self._loop.call_later(KEEPALIVE_TIMEOUT_S, self._transport.abort)

    # -------------------------------------------------------------------------------------- keepalive

    def _keep_alive(self) -> None:
        silent_s = self._loop.time() - self._heard_at
        if silent_s < KEEPALIVE_S:
            self._timer = self._loop.call_later(KEEPALIVE_S - silent_s, self._keep_alive)
        elif not self._streams:
            self._timer = self._loop.call_later(KEEPALIVE_S, self._keep_alive)
        else:
            self._h2.ping(bytes(8))
            self._put_h2()
            self._timer = self._loop.call_later(KEEPALIVE_TIMEOUT_S, self._insist, self._loop.time())

    def _insist(self, asked_at: float) -> None:
        if self._heard_at >= asked_at:
            self._keep_alive()
        else:
            logger.error("a worker has said nothing for %.0f s", self._loop.time() - self._heard_at)
            self.abort()
