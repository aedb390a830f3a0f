"""A bidirectional stream to a worker over `grpc.aio`."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sized
from typing import Any, Final, Generic, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2

from ws_adapter.process.byte_count import ByteCount
from ws_adapter.worker.transport.rpc import Received, Response, RpcError, connection_closed, error_of

logger = logging.getLogger(__name__)

REFUSED_PAUSE_S: Final = 0.02
"""The pause in seconds before a refused call is retried: a worker may still count calls that just ended."""

_PREFIX_BYTES: Final = 5
"""Bytes that gRPC puts before each message."""

Streams: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"


class Call(Generic[Response]):
    """One call. Each message from the worker is passed to `on_message` at once.

    Messages to the worker wait here while the worker does not read; the caller bounds their number.
    """

    def __init__(
        self,
        begin: Callable[["Call[Any]"], tuple[Streams, Callable[[], None]]],
        response: type[Response],
        on_message: Callable[[Response], None],
        on_end: Callable[[RpcError | None], None],
        byte_count: ByteCount,
        timeout_s: float,
    ) -> None:
        """`begin` starts the call and returns it with a function to call at its end."""
        self._begin = begin
        self._parse = response.FromString
        self._on_message = on_message
        self._on_end = on_end
        self._byte_count = byte_count
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._call: Streams | None = None
        self._metadata: asyncio.Future[Received] = self._loop.create_future()
        self._waiting: deque[bytes] = deque()
        self._is_ending = False
        self._is_over = False
        self._over: Callable[[], None] = _nothing
        self._abandoned = self._loop.create_future()
        self._has_begun = False
        self._reading: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> Sized:
        """The written messages that are not sent yet."""
        return self._waiting

    async def start(self, *, again: bool = False) -> None:
        """Send the request headers; with `again`, after a pause, since the worker refused the last call.

        Raises `RpcError`.
        """
        if again:
            await asyncio.sleep(REFUSED_PAUSE_S)
        self._check_not_over()
        self._call, self._over = self._begin(self)
        try:
            await self._sent(self._call.wait_for_connection())
        except BaseException:
            self._is_over = True
            if self._call is not None:
                self._call.cancel()
            self._drop_references()
            raise
        self._check_not_over()
        self._has_begun = True
        self._reading = asyncio.create_task(self._read(self._call))
        self._write_on()

    def _check_not_over(self) -> None:
        if self._is_over:
            raise RpcError(code_pb2.CANCELLED, "the call ended before it began")

    async def _sent(self, connection: Coroutine[Any, Any, None]) -> None:
        """Wait until the headers are sent or the call is abandoned. Raises `RpcError`."""
        sending = asyncio.ensure_future(connection)
        try:
            await asyncio.wait({sending, self._abandoned}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        refusal = None if self._is_over or sending.cancelled() else self._not_begun(sending.exception())
        try:
            if refusal is not None:
                raise refusal
        finally:
            del refusal, sending  # breaks the reference cycle of the exception and this frame

    def _not_begun(self, error: BaseException | None) -> RpcError | None:
        """Return the error of a call that did not begin; None if it began, or if `_read` reports its end."""
        if not isinstance(error, grpc.aio.AioRpcError):
            return None
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            text = f"the call could not begin within {self._timeout_s:g} s"
            return RpcError(code_pb2.DEADLINE_EXCEEDED, text)
        found = error_of(error.code(), error.details(), error.trailing_metadata())
        return found if found.code == code_pb2.UNAVAILABLE and not found.was_refused else None

    async def initial_metadata(self) -> Received:
        """Return the initial metadata of the worker. Raises `RpcError` if the call ends without it."""
        return await self._metadata

    def write(self, message: Message) -> None:
        """Queue `message` for sending, without waiting. After the end it does nothing."""
        if self._has_begun and not self._is_over:
            self.write_serialized(message.SerializeToString())

    def write_serialized(self, *parts: bytes) -> None:
        """Queue a serialised message, in parts."""
        if self._has_begun and not self._is_over and not self._is_ending:
            self._waiting.append(b"".join(parts))
            self._write_on()

    def half_close(self) -> None:
        """Half-close the call: no further message is written."""
        if self._has_begun and not self._is_over:
            self._is_ending = True
            self._write_on()

    def cancel(self) -> None:
        """Cancel the call; `on_end` is called in a later pass of the event loop."""
        self._abandon(RpcError(code_pb2.CANCELLED, "cancelled by the adapter"))

    def disconnect(self) -> None:
        """End the call because the adapter closes its connection."""
        self._abandon(connection_closed())

    def _write_on(self) -> None:
        is_idle = self._writing is None or self._writing.done()
        if is_idle and (self._waiting or self._is_ending) and self._call is not None:
            self._writing = asyncio.create_task(self._write(self._call))

    async def _write(self, call: Streams) -> None:
        """Write waiting messages one at a time: grpcio allows one pending write."""
        try:
            while self._waiting:
                data = self._waiting[0]
                await call.write(data)
                self._byte_count.sent += len(data) + _PREFIX_BYTES
                self._waiting.popleft()
            if self._is_ending:
                await call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the call is over, which `_read` reports
        except asyncio.CancelledError:
            if not call.cancelled():
                raise

    async def _read(self, call: Streams) -> None:
        metadata = {key.encode(): _bytes(value) for key, value in await call.initial_metadata() or ()}
        if metadata and not self._metadata.done():
            self._metadata.set_result(metadata)
        error: RpcError | None = None
        try:
            while isinstance(data := await call.read(), bytes):  # and not EOF
                if not self._metadata.done():
                    self._metadata.set_result(metadata)
                self._byte_count.received += len(data) + _PREFIX_BYTES
                self._take(data)
                if self._is_over:
                    return
        except grpc.aio.AioRpcError as refused:
            error = error_of(refused.code(), refused.details(), refused.trailing_metadata())
        self._finish(error)

    def _take(self, data: bytes) -> None:
        try:
            message = self._parse(data)
        except DecodeError:
            self._abandon(RpcError(code_pb2.INTERNAL, "a message cannot be parsed"))
            return
        try:
            self._on_message(message)
        except Exception:
            logger.exception("an answer of the worker could not be handled")
            self.cancel()

    def _abandon(self, error: RpcError) -> None:
        if not self._is_over:
            self._is_over = True
            if self._call is not None:
                self._call.cancel()
            if not self._abandoned.done():
                self._abandoned.set_result(None)
            self._loop.call_soon(self._report_end, error)

    def _finish(self, error: RpcError | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._report_end(error)

    def _drop_references(self) -> None:
        """Drop the references of the call: grpcio closes a connection only once all its calls are freed.

        The call, its tasks and their exceptions form reference cycles, which otherwise only a full garbage
        collection would free.
        """
        self._over()
        tasks = (self._reading, self._writing)
        self._call = self._reading = self._writing = None
        self._over, self._on_end, self._on_message = _nothing, _ignore, _ignore
        for task in tasks:
            if task is not None and task is not asyncio.current_task():
                task.cancel()

    def _report_end(self, error: RpcError | None) -> None:
        self._waiting.clear()
        on_end = self._on_end
        self._drop_references()
        if not self._metadata.done():
            self._metadata.set_exception(error or RpcError(code_pb2.UNKNOWN, "ended before it began"))
            self._metadata.exception()  # mark it as retrieved: there may be no waiter
        if not self._has_begun:
            return
        try:
            on_end(error)
        except Exception:
            logger.exception("the end of a call could not be handled")


def _nothing() -> None:
    """Do nothing."""


def _ignore(told: object) -> None:
    """Do nothing: the call is over."""


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
