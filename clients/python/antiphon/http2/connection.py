"""One HTTP/2 connection, with what both of its sides have in common.

DATA, WINDOW_UPDATE, PING and GOAWAY are read and written here, all other frames by `control`.
"""

import asyncio
import struct
from collections.abc import Sequence
from typing import Final, Generic, TypeVar, cast

from h2.errors import ErrorCodes
from h2.events import Event, RemoteSettingsChanged
from h2.exceptions import ProtocolError

from antiphon.http2.byte_count import ByteCount
from antiphon.http2.control import HEAD, MAX_FRAME, NUMBER, Control
from antiphon.http2.keepalive import Keepalive
from antiphon.http2.stream import Part, Stream

HANG_UP_S: Final = 5.0
"""How long the last words of a connection may take to leave."""

WRITE_AHEAD: Final = 2**18
"""Bytes in the transport at which the streams keep what they have."""

_BUFFER: Final = 2**18
_FLUSH: Final = 2**16
"""Bytes that do not wait for more to be written."""
_MAX_WINDOW: Final = 2**31 - 1

_UPDATE: Final = struct.Struct("!LBLL")
_INCREMENT: Final = struct.Struct("!L")
_GOAWAY_BODY: Final = struct.Struct("!LL")
_HEAD_BYTES: Final = HEAD.size
_DATA, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 6, 7, 8
_UPDATE_HEAD: Final = _INCREMENT.size << 8 | _WINDOW_UPDATE
_PING_BYTES: Final = 8
_PING_HEAD: Final = _PING_BYTES << 8 | _PING
_GOAWAY_HEAD: Final = _GOAWAY_BODY.size << 8 | _GOAWAY
_LONGEST_HEAD: Final = MAX_FRAME << 8 | 0xFF
_END_STREAM, _ACK, _PADDED = 1, 1, 8

S = TypeVar("S", bound=Stream)


class ConnectionBroken(Exception):
    """The other side does not keep to the protocol; `code` tells it how."""

    def __init__(self, code: ErrorCodes, text: str) -> None:
        super().__init__(text)
        self.code = code


class Connection(asyncio.BufferedProtocol, Generic[S]):
    """Open from `connection_made` to `connection_lost`. Each side overrides what it does of its own."""

    def __init__(
        self, control: Control, connection_window: int, stream_window: int, byte_count: ByteCount
    ) -> None:
        """The other side may send so many bytes ahead; what is read and written is counted."""
        self._control = control
        self._connection_window = connection_window
        self._stream_window = stream_window
        self._byte_count = byte_count
        self._transport: asyncio.Transport | None = None
        self._is_over = True
        self.lost_by: Exception | None = None
        """Why it ended, unless it was closed."""
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, S] = {}
        self._is_leaving = False
        """No stream is opened any more, and with the last one it ends."""
        self._buffer = memoryview(bytearray(_BUFFER))
        self._filled = 0
        self._credit = 0
        self._window = self._first_window = control.window
        self._frame_size = control.frame_size
        self._is_paused = False
        self._blocked: dict[S, None] = {}
        """Streams with something to send, once there is room on the connection."""
        self._parts: list[Part] = []
        """What is written before this turn of the event loop is over, `_size` bytes."""
        self._is_reading = False
        """Then it is written when all is read that has come."""
        self._rests = False
        """Whether others have their turn before the next frame."""
        self._size = 0
        self._keepalive = Keepalive(self._is_asked, self._ping, self._fell_silent)
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

    # ------------------------------------------------------------------ what each side does of its own

    def _is_asked(self) -> bool:
        """Whether it matters that the other side is still there."""
        return bool(self._streams)

    def _fell_silent(self, silent_s: float) -> None:
        """The other side does not answer."""
        self.abort()

    def _settled(self) -> None:
        """The other side has said what it allows."""

    def _ended(self, stream: S) -> None:
        """The other side sends nothing more on `stream`, and has not said so in trailers."""

    def _other_leaves(self, last: int) -> None:
        """The other side takes no stream above `last`, and answers no further one."""

    def _happened(self, event: Event) -> None:
        """Any other thing that `h2` tells of."""

    def _changed(self) -> None:
        """There may be room for streams, or there is none any more."""

    def _lost(self) -> None:
        """The connection is over, and so are its streams."""

    # ---------------------------------------------------------------------------------------- sending

    def send(self, stream: S, size: int, *parts: Part) -> None:
        """Sends `parts`, `size` bytes in all, as soon as windows and transport allow it."""
        if stream.is_ending:
            return
        is_free = not (stream.waiting or self._is_paused or self._is_over)
        if is_free and size <= stream.window and size <= self._window and size <= self._frame_size:
            self._put_data(stream, size, parts)
            return
        stream.waiting.append((size, parts))
        if len(stream.waiting) == 1:
            self._pump(stream)

    def end(self, stream: S) -> None:
        """Nothing more will be sent."""
        if not stream.is_ending:
            stream.is_ending = True
            self._pump(stream)

    def _pump(self, stream: S) -> None:
        """Sends what waits in `stream`, as far as the windows and the transport allow."""
        if self._is_over:
            return
        if waiting := stream.waiting:
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
            stream.drained()
        if stream.is_ending and not stream.has_ended and not waiting:
            stream.has_ended = True
            self._put_end(stream)

    def _put_end(self, stream: S) -> None:
        self._control.end(stream.number)
        self._put_due()

    def reset(self, stream: S, code: ErrorCodes) -> None:
        """Ends `stream` on both sides."""
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

    def _put_leaving(self) -> None:
        """A GOAWAY to say that another will follow. Of this one `h2` knows nothing, and goes on.

        The number in it may not grow: the one with which `h2` ends has whatever was refused meanwhile.
        """
        body = _GOAWAY_BODY.pack(NUMBER, 0)
        self._put(_HEAD_BYTES + _GOAWAY_BODY.size, HEAD.pack(_GOAWAY_HEAD, 0, 0), body)

    def _put_ping(self, flags: int, body: bytes) -> None:
        self._put(_HEAD_BYTES + _PING_BYTES, HEAD.pack(_PING_HEAD, flags, 0), body)

    def _give_credit(self, number: int, size: int) -> None:
        self._put(_UPDATE.size, _UPDATE.pack(_UPDATE_HEAD, 0, number, size))

    def _put_data(self, stream: S, size: int, parts: Sequence[Part]) -> None:
        """One frame of `size` bytes, for which there is room; they must stay as they are."""
        stream.window -= size
        self._window -= size
        self._put(_HEAD_BYTES + size, HEAD.pack(size << 8 | _DATA, 0, stream.number), *parts)

    def _put(self, size: int, *parts: Part) -> None:
        """Writes `parts`, `size` bytes in all, soon, together with what else comes, in few system calls."""
        if not self._parts and not self._is_reading:
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
        self._control.begin(self._connection_window, self._stream_window)
        self._put_due()
        self._keepalive.begin()

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.BaseProtocol."""
        self._stop()
        self.lost_by = self.lost_by or error
        if self._cutting is not None:
            self._cutting.cancel()
        self._settled()
        while self._streams:  # the end of one may end others
            self._break(
                next(iter(self._streams.values())), f"the connection is lost: {error or 'it was closed'}"
            )
        self._lost()

    def get_buffer(self, size_hint: int) -> memoryview:
        """See asyncio.BufferedProtocol."""
        return self._buffer[self._filled :]

    def buffer_updated(self, size: int) -> None:
        """Takes whole frames out of the buffer: all of them, or until it rests."""
        self._keepalive.heard_at = self._loop.time()
        self._byte_count.received += size
        buffer, filled, begin = self._buffer, self._filled + size, 0
        unpack = HEAD.unpack_from
        self._is_reading = True
        try:
            while (body := begin + _HEAD_BYTES) <= filled:
                head, flags, number = unpack(buffer, begin)
                if head > _LONGEST_HEAD:
                    raise ConnectionBroken(ErrorCodes.FRAME_SIZE_ERROR, f"a frame has {head >> 8} bytes")
                if (end := body + (head >> 8)) > filled:
                    break
                kind = head & 0xFF
                if kind == _DATA:
                    self._data_received(number & NUMBER, flags, buffer[body:end])
                elif head == _UPDATE_HEAD:
                    self._window_opened(number & NUMBER, *_INCREMENT.unpack_from(buffer, body))
                elif kind == _WINDOW_UPDATE:
                    text = "a WINDOW_UPDATE does not have 4 bytes"
                    raise ConnectionBroken(ErrorCodes.FRAME_SIZE_ERROR, text)
                elif kind == _PING:
                    self._ping_received(number & NUMBER, flags, bytes(buffer[body:end]))
                elif kind == _GOAWAY:
                    self._goaway_received(buffer[body:end])
                else:
                    self._control_received(bytes(buffer[begin:end]))
                begin = end
                if self._rests:
                    break
            if self._blocked:
                self._pump_blocked()
        except (ConnectionBroken, ProtocolError) as error:
            self._give_up(error)
            return
        finally:
            self._is_reading = False
            self._flush()
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
        if self._credit >= self._connection_window // 2:
            self._give_credit(0, self._credit)
            self._credit = 0
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.credit += length
        stream.data_received(data)
        if stream.connection is None:
            return
        if flags & _END_STREAM:
            self._ended(stream)
        else:
            self.give_room(stream)

    def give_room(self, stream: S) -> None:
        """The other side may send as much on `stream` as has been taken."""
        if stream.credit >= self._stream_window // 2:
            self._give_credit(stream.number, stream.credit)
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

    def _ping_received(self, number: int, flags: int, body: bytes) -> None:
        if number:
            raise ConnectionBroken(ErrorCodes.PROTOCOL_ERROR, "a PING is of one stream")
        if len(body) != _PING_BYTES:
            raise ConnectionBroken(ErrorCodes.FRAME_SIZE_ERROR, "a PING does not have 8 bytes")
        if not flags & _ACK:
            self._put_ping(_ACK, body)

    def _goaway_received(self, body: memoryview) -> None:
        if len(body) < _GOAWAY_BODY.size:
            raise ConnectionBroken(ErrorCodes.FRAME_SIZE_ERROR, "a GOAWAY has less than 8 bytes")
        self._is_leaving = True
        self._other_leaves(int.from_bytes(body[:4]) & NUMBER)
        self._changed()
        self._close_if_done()

    def _control_received(self, frame: bytes) -> None:
        events = self._control.receive(frame)
        self._put_due()  # new settings are acknowledged before anything is sent by them
        for event in events:
            if isinstance(event, RemoteSettingsChanged):
                self._settings_changed()
            else:
                self._happened(event)

    def _settings_changed(self) -> None:
        wider = self._control.window - self._first_window
        self._first_window += wider
        self._frame_size = self._control.frame_size
        for stream in list(self._streams.values()):
            stream.window += wider
            if stream.connection is not None:  # else the end of another was its own
                self._pump(stream)
        self._settled()
        self._changed()

    def _break(self, stream: S, why: str) -> None:
        self._forget(stream)
        stream.broken(why)

    def _forget(self, stream: S) -> None:
        del self._streams[stream.number]
        stream.connection = None
        stream.waiting.clear()
        self._blocked.pop(stream, None)
        self._changed()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_leaving and not self._streams:
            self._loop.call_soon(self.close)

    def _give_up(self, error: Exception) -> None:
        self.lost_by = self.lost_by or error
        if not self._is_over:
            if isinstance(error, ConnectionBroken):  # of its own errors h2 has told the other side
                self._control.close(error.code)
            self._hang_up()

    def _hang_up(self) -> None:
        assert self._transport is not None
        self._put_due()
        self._stop()
        if self.spoken is not None:
            # TLS would wait for the last word of the other side, who seldom says one; HTTP/2 has said ours.
            self._transport.abort()
            return
        self._transport.close()
        self._cutting = self._loop.call_later(HANG_UP_S, self._transport.abort)

    def _stop(self) -> None:
        """Nothing is sent or asked any more, and no stream opened."""
        self._flush()
        self._is_over = True
        self._keepalive.stop()
        self._changed()

    def _ping(self) -> None:
        self._put_ping(0, bytes(_PING_BYTES))


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
