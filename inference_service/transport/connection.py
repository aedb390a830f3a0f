"""The connection of a caller, seen from the worker."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import grpc
from h2.errors import ErrorCodes
from h2.events import Event, RequestReceived, StreamReset, TrailersReceived

from antiphon.http2 import connection
from antiphon.http2.byte_count import ByteCount
from antiphon.http2.connection import ConnectionBroken
from antiphon.http2.control import Control, Headers
from inference_service.transport.budget import BYTE, CONTROL, CRUMB, FRAME, TURN, Reserve
from inference_service.transport.call import Call, MalformedRequest, read_head
from inference_service.transport.origins import Origin

logger = logging.getLogger(__name__)

GREETING_S: Final = 5.0
"""How long a caller may take to begin, with TLS and again with HTTP/2; as long it waits for its turn."""

MAX_METADATA_BYTES: Final = 8192
"""Bytes of the headers of a call, each with 32 more as RFC 9113 counts them."""

STREAM_WINDOW: Final = 2**18
CONNECTION_WINDOW: Final = 2**24
"""Bytes that a caller may send ahead."""

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_LONGEST_CONTROL: Final = 2**15
"""Bytes of a frame other than DATA, or of the frames that headers come in."""
_HEADERS, _CONTINUATION = 1, 9
_END_STREAM, _END_HEADERS = 1, 4
_ENTRY_BYTES: Final = 32
_MOST_UNREAD: Final = 2**20
"""Bytes of answers to pings and the like that a caller may leave unread."""


class CallerConnection(connection.Connection[Call]):
    """Open from `connection_made` to `connection_lost`. A caller who wastes our time is hung up on."""

    def __init__(
        self,
        sock: socket.socket,
        origin: Origin,
        most_calls: int,
        on_call: Callable[[Call], None],
        on_lost: Callable[["CallerConnection"], None],
    ) -> None:
        """On a socket that was accepted; see `enter`. At most `most_calls` are open at once.

        `on_lost` is also called if nothing comes of it, and maybe more than once.
        """
        control = Control(is_client=False, takes=most_calls, most_headers=MAX_METADATA_BYTES)
        super().__init__(control, CONNECTION_WINDOW, STREAM_WINDOW, ByteCount())
        self.origin = origin
        self._socket = sock
        self._entering: asyncio.Task[None] | None = None
        self._most_calls = most_calls
        self._on_call = on_call
        self._on_lost = on_lost
        self._is_greeted = False
        self._greeting: asyncio.TimerHandle | None = None
        self._headers = 0
        """Bytes of the frames of headers that have not ended yet."""
        self._reserve = Reserve(self._loop.time())
        self._spent = 0.0
        """Since others had their turn."""
        self._price = 0.0
        """Of the latest frame of headers and the like."""

    @property
    def is_idle(self) -> bool:
        """Whether there is no call on it."""
        return not self._streams

    @property
    def is_minor(self) -> bool:
        """Whether all calls on it are."""
        return all(call.is_minor for call in self._streams.values())

    def enter(self, tls: ssl.SSLContext | None) -> None:
        """Begins, with the handshake if there is `tls`, as soon as its origin has a turn for it."""
        self._entering = self._loop.create_task(self._enter(tls))

    async def _enter(self, tls: ssl.SSLContext | None) -> None:
        turns, patience_s = self.origin.turns, GREETING_S if tls is not None else None
        try:
            async with asyncio.timeout(GREETING_S):
                await turns.acquire()
            try:
                await self._loop.connect_accepted_socket(
                    lambda: self, self._socket, ssl=tls, ssl_handshake_timeout=patience_s
                )
            finally:
                turns.release()
        except OSError as error:
            logger.debug("a caller of %s has not come in: %s", self.origin.name, error)
        finally:
            if self._transport is None:  # nobody else tells
                self._socket.close()
                self._on_lost(self)

    def leave(self) -> None:
        """No further call is taken; with the last one it ends."""
        if self._transport is None:
            self.abort()
        elif self.is_usable:
            self._is_leaving = True
            self._put_leaving()
            self._close_if_done()

    def abort(self) -> None:
        """Cuts the connection, or what would have become one."""
        super().abort()
        if self._transport is None:  # the handshake notices, at the latest when it begins
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def _sessions(self) -> int:
        """How many calls on it are of sessions."""
        return sum(not call.is_minor for call in self._streams.values())

    # ---------------------------------------------------------------------------------- for its calls

    def answer(self, call: Call, headers: Headers, *, is_end: bool) -> None:
        """Sends the headers of an answer, or its trailers, with which the call ends."""
        if self._is_over:  # it is about to be lost, and with it the call
            if is_end:
                self._forget(call)
            return
        self._control.answer(call.number, headers, is_end=is_end)
        if not is_end:
            self._put_due()
        elif call.has_all:
            self._put_due()
            self._forget(call)
        else:
            self.reset(call, ErrorCodes.NO_ERROR)  # what is still to come is not asked for

    def give_room(self, call: Call) -> None:
        """As much may be sent to `call` as it has taken."""
        if not call.is_held:
            super().give_room(call)
        elif call.credit > STREAM_WINDOW:
            raise ConnectionBroken(ErrorCodes.FLOW_CONTROL_ERROR, "a caller sends more than it may")

    def repay(self, amount: float) -> None:
        """What was taken of the budget was for something."""
        self.origin.budget.repay(amount)

    # -------------------------------------------------------------------------------------- receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.BaseProtocol."""
        super().connection_made(transport)
        self._greeting = self._loop.call_later(GREETING_S, self.abort)

    def buffer_updated(self, size: int) -> None:
        """Takes every whole frame out of the buffer, once the preface has come."""
        if not self._is_greeted:
            known = min(self._filled + size, len(_PREFACE))
            if self._buffer[:known] != _PREFACE[:known]:
                self.abort()  # it speaks something else
                return
            if known < len(_PREFACE):
                self._filled = known
                return
            self._is_greeted = True
            self._stop_greeting()
            self._control.receive(_PREFACE)
            size = self._filled + size - known
            self._filled = 0
            self._buffer[:size] = self._buffer[known : known + size]
        self._spent = 0.0
        filled = self._filled
        super().buffer_updated(size)
        if 0 < size < CRUMB and self._filled == filled + size:
            try:
                self._spend(FRAME)  # woken for less than a frame
            except ConnectionBroken as error:
                self._give_up(error)
        unread = self._transport.get_write_buffer_size() if self._transport is not None else 0
        if unread > _MOST_UNREAD:
            self.abort()
        elif self._rests and not self._is_over and self._transport is not None:
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        self._rests = False
        if not self._is_over and self._transport is not None:
            self._transport.resume_reading()
            self.buffer_updated(0)

    def _is_asked(self) -> bool:
        return True

    def _data_received(self, number: int, flags: int, data: memoryview) -> None:
        self._spend(FRAME)
        if (call := self._streams.get(number)) is not None:
            if call.has_all:
                raise ConnectionBroken(ErrorCodes.STREAM_CLOSED, "a caller goes on after its end")
            if flags & _END_STREAM:  # before the answer, which may follow from this
                self._control.ended(number)
                call.has_all = True
        super()._data_received(number, flags, data)

    def _window_opened(self, number: int, more: int) -> None:
        self._spend(FRAME)
        super()._window_opened(number, more)

    def _control_received(self, frame: bytes) -> None:
        size = len(frame)
        if frame[3] in (_HEADERS, _CONTINUATION):
            size += self._headers
            self._headers = 0 if frame[4] & _END_HEADERS else size
        if size > _LONGEST_CONTROL:
            raise ConnectionBroken(ErrorCodes.ENHANCE_YOUR_CALM, f"a caller sends {size} bytes of headers")
        self._price = CONTROL + len(frame) * BYTE
        self._spend(self._price)
        super()._control_received(frame)

    def _ping_received(self, number: int, flags: int, body: bytes) -> None:
        self._spend(FRAME)
        super()._ping_received(number, flags, body)

    def _other_leaves(self, last: int) -> None:
        self._spend(CONTROL)

    def _spend(self, amount: float) -> None:
        now = self._keepalive.heard_at
        if not self.origin.budget.spend(amount, now) and not self._reserve.spend(amount, now, self._sessions):
            raise ConnectionBroken(ErrorCodes.ENHANCE_YOUR_CALM, "a caller sends too many frames")
        self._spent += amount
        self._rests = self._spent >= TURN

    def _happened(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self._called(event)
            case TrailersReceived():
                if (call := self._streams.get(event.stream_id)) is not None:
                    call.has_all = True
                    call.ended()
            case StreamReset():
                if (call := self._streams.get(event.stream_id)) is not None:
                    self._break(call, "the caller has reset the call")

    def _called(self, event: RequestReceived) -> None:
        number = event.stream_id
        if not self.is_usable or len(self._streams) >= self._most_calls:
            self._control.reset(number, ErrorCodes.REFUSED_STREAM)
            self._put_due()
            return
        try:
            call, timeout_s = read_head(event.headers)
        except MalformedRequest as error:
            self._control.answer(number, [(":status", str(error.status))], is_end=True)
            if event.stream_ended is None:
                self._control.reset(number, ErrorCodes.NO_ERROR)
            self._put_due()
            return
        call.connection, call.number, call.window = self, number, self._first_window
        self._streams[number] = call
        call.cost = self._price
        call.has_all = event.stream_ended is not None
        if timeout_s is not None:
            call.expire_in(timeout_s)
        size = sum(len(name) + len(value) + _ENTRY_BYTES for name, value in event.headers)
        if size > MAX_METADATA_BYTES:
            text = f"The metadata has {size} bytes, at most {MAX_METADATA_BYTES} are taken."
            call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            return
        try:
            self._on_call(call)
        except Exception:
            logger.exception("a call could not be handled")
            call.end(grpc.StatusCode.INTERNAL, "The call failed inside the worker.")

    def _ended(self, call: Call) -> None:
        call.ended()

    def _lost(self) -> None:
        self._stop_greeting()
        self._on_lost(self)

    def _stop_greeting(self) -> None:
        if self._greeting is not None:
            self._greeting.cancel()
