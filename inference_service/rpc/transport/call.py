"""One streaming call: callbacks for the session layer, over `grpc.aio`."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

import grpc
import grpc.aio

from inference_service.errors import SessionError
from inference_service.rpc.transport.peer import Peer

logger = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"

HALF_CLOSE_SETTLE_S: Final = 0.01
"""Seconds after which a half-close counts: gRPC shows a cancelled call as half-closed until it delivers the
cancellation.
"""

STATUS_DETAILS: Final = "grpc-status-details-bin"
"""Trailing metadata that carries a serialised `google.rpc.Status`."""


class Handler(Protocol):
    """The handler of a call. No method is called after `given_up`, or after the end of the call."""

    def message_received(self, data: bytes) -> None:
        """Take one serialised request; the next one follows unless the call is held."""

    def half_closed(self) -> None:
        """Note that the caller sends no further request."""

    def given_up(self) -> None:
        """Note that the caller cancelled the call, vanished or let its deadline pass."""

    def drained(self) -> None:
        """Note that everything written so far has been sent."""


class Call:
    """A streaming call as the session layer uses it. Its methods never block; only `serve` waits.

    The call starts held: it reads no request before `resume`.
    """

    def __init__(self, context: Context) -> None:
        self.metadata: tuple[tuple[str, str | bytes], ...] = tuple(context.invocation_metadata() or ())
        """Metadata of the caller: text, and bytes where the name ends with `-bin`."""
        self.peer = Peer.of(context)
        self.on_over: Callable[[grpc.StatusCode], None] = _ignore
        """Called once with the status code of the call; CANCELLED if this side did not end it."""
        self._context = context
        self._handler: Handler | None = None
        self._initial: tuple[tuple[str, str], ...] = ()
        self._reads = asyncio.Event()
        self._waiting: deque[bytes] = deque()
        self._is_writing = False
        self._changed = asyncio.Event()
        """Set when `serve` has work."""
        self._status: tuple[grpc.StatusCode, str, bytes] | None = None

    # ------------------------------------------------------------------------------- for the handler

    def take(self, handler: Handler, *metadata: tuple[str, str]) -> None:
        """Set the handler of the call, and send `metadata` before any message."""
        self._handler = handler
        self._initial = metadata

    @property
    def is_held(self) -> bool:
        """Whether requests are kept back."""
        return not self._reads.is_set()

    def hold(self) -> None:
        """Deliver no further request; gRPC's flow control then stops the caller."""
        self._reads.clear()

    def resume(self) -> None:
        """Deliver requests from now on."""
        self._reads.set()

    @property
    def is_busy(self) -> bool:
        """Whether a written message has not been sent; `Handler.drained` is called once it has."""
        return self._is_writing or bool(self._waiting)

    def write(self, message: bytes) -> None:
        """Queue a serialised message; do nothing after the end."""
        if self._status is None:
            self._waiting.append(message)
            self._changed.set()

    def end(self, code: grpc.StatusCode, message: str = "", details: bytes = b"") -> None:
        """End the call once all messages are sent. `details` is a serialised `google.rpc.Status`."""
        if self._status is None:
            self._handler = None
            self._status = (code, message, details)
            self._changed.set()

    def fail(self, error: SessionError) -> None:
        """End the call with `error` once all messages are sent."""
        self.end(error.code, error.message, error.status().SerializeToString())

    def discard(self) -> None:
        """Drop queued messages that gRPC has not begun to send.

        gRPC cannot end a call while a write is pending: one message for a caller that stopped reading waits
        on that caller's connection until it reads, cancels or disconnects.
        """
        self._waiting.clear()

    # --------------------------------------------------------------------------------- for the server

    async def serve(self) -> None:
        """Read and write until the call is over; grpc.aio sends the status when this returns.

        Raises `CancelledError` for a call that the caller gave up.
        """
        if self._status is not None and not self._waiting:  # refused: trailers only
            self._finish()
            return
        reader = asyncio.create_task(self._read())
        try:
            await self._context.send_initial_metadata(self._initial)
            await self._write()
        except (asyncio.CancelledError, grpc.aio.BaseError):
            self._give_up()
            raise asyncio.CancelledError from None
        else:
            self._finish()
        finally:
            reader.cancel()

    async def _write(self) -> None:
        """Write queued messages, one at a time, until there is a status."""
        while True:
            while self._waiting:
                self._is_writing = True
                await self._context.write(self._waiting.popleft())
                self._is_writing = False
                if self._handler is not None and not self._waiting:
                    self._handler.drained()
            if self._status is not None:
                return
            self._changed.clear()
            await self._changed.wait()

    async def _read(self) -> None:
        """Deliver requests while the call is not held."""
        while True:
            await self._reads.wait()
            try:
                data: object = await self._context.read()
            except grpc.aio.BaseError:
                return  # the call is over: grpc.aio cancels `serve`
            if not isinstance(data, bytes):  # grpc.aio.EOF
                await asyncio.sleep(HALF_CLOSE_SETTLE_S)
            if self._handler is None:
                return
            try:
                if not isinstance(data, bytes):
                    self._handler.half_closed()
                    return
                self._handler.message_received(data)
            except Exception:
                logger.exception("request failed inside the worker")
                handler = self._handler
                self.end(grpc.StatusCode.INTERNAL, "The call failed inside the worker.")
                if handler is not None:
                    handler.given_up()
                return

    def _finish(self) -> None:
        """Set the status for grpc.aio to send."""
        assert self._status is not None, "a call is finished by `end`"
        code, message, details = self._status
        self._context.set_code(code)
        self._context.set_details(message)
        if details:
            self._context.set_trailing_metadata(((STATUS_DETAILS, details),))
        self.on_over(code)

    def _give_up(self) -> None:
        self.on_over(grpc.StatusCode.CANCELLED)
        self._waiting.clear()
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.given_up()


def _ignore(_: grpc.StatusCode) -> None:
    """Ignore the status of a call."""
