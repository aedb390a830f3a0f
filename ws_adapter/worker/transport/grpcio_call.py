"""A call that grpcio makes."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2

from antiphon.http2.byte_count import ByteCount
from ws_adapter.worker.transport.channel import FULL_S, Call, Received, Response, RpcError

logger = logging.getLogger(__name__)

_DETAILS: Final = "grpc-status-details-bin"

_REFUSED: Final = "RST_STREAM with error code 7"
"""How grpcio tells of a REFUSED_STREAM, in the text of the status."""

_PREFIX_BYTES: Final = 5
"""Of each message on the wire."""

Streams: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"


def error_of(code: grpc.StatusCode, text: str | None, trailers: Any) -> RpcError:
    """A status of grpcio's, which is not OK, as ours."""
    number = code.value[0]
    details = next((value for key, value in trailers or () if key == _DETAILS), b"")
    was_refused = code is grpc.StatusCode.UNAVAILABLE and _REFUSED in (text or "")
    return RpcError(number, text or "", details, was_refused=was_refused)


def lost() -> RpcError:
    """What ends the calls of a connection that is ended from this side."""
    return RpcError(code_pb2.UNAVAILABLE, "the connection to the worker was closed")


class GrpcioCall(Call, Generic[Response]):
    """See `ws_adapter.worker.transport.channel.Call`."""

    def __init__(
        self,
        begin: Callable[["GrpcioCall[Any]"], tuple[Streams, Callable[[], None]]],
        response: type[Response],
        on_message: Callable[[Response], None],
        on_end: Callable[[RpcError | None], None],
        byte_count: ByteCount,
        timeout_s: float,
    ) -> None:
        """`begin` makes the streams, and what is to be called at their end."""
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
        self._over: Callable[[], None] = lambda: None
        self._given_up = self._loop.create_future()
        self._has_begun = False
        self._reading: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> deque[bytes]:
        """See `Call`."""
        return self._waiting

    async def start(self, *, again: bool = False) -> None:
        """See `Call`."""
        if again:
            await asyncio.sleep(FULL_S)
        if not self._is_over:
            self._call, self._over = self._begin(self)
            try:
                await self._sent(self._call)
            except BaseException:
                self._is_over = True
                self._call.cancel()
                self._over()
                raise
        if self._is_over or self._call is None:
            raise RpcError(code_pb2.CANCELLED, "it ended before it began")
        self._has_begun = True
        self._reading = asyncio.create_task(self._read(self._call))
        self._write_on()

    async def _sent(self, call: Streams) -> None:
        """Waits until the headers have left, or the call is given up. Raises `RpcError`."""
        sending = asyncio.ensure_future(call.wait_for_connection())
        try:
            await asyncio.wait({sending, self._given_up}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not self._is_over:
                await sending
        except grpc.aio.AioRpcError as error:
            if (refusal := self._not_begun(error)) is not None:
                raise refusal from None
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def _not_begun(self, error: grpc.aio.AioRpcError) -> RpcError | None:
        """None if it was the worker that ended the call, which is told as its end."""
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            text = f"it could not begin within {self._timeout_s:g} s"
            return RpcError(code_pb2.DEADLINE_EXCEEDED, text)
        told = error_of(error.code(), error.details(), error.trailing_metadata())
        return told if told.code == code_pb2.UNAVAILABLE and not told.was_refused else None

    async def initial_metadata(self) -> Received:
        """See `Call`."""
        return await self._metadata

    def write(self, message: Message) -> None:
        """See `Call`."""
        if self._has_begun and not self._is_over:
            self.write_serialized(message.SerializeToString())

    def write_serialized(self, *parts: bytes) -> None:
        """See `Call`."""
        if self._has_begun and not self._is_over and not self._is_ending:
            self._waiting.append(b"".join(parts))
            self._write_on()

    def half_close(self) -> None:
        """See `Call`."""
        if self._has_begun and not self._is_over:
            self._is_ending = True
            self._write_on()

    def cancel(self) -> None:
        """See `Call`."""
        self._abandon(RpcError(code_pb2.CANCELLED, "cancelled by the adapter"))

    def lose(self) -> None:
        """The connection is ended from this side."""
        self._abandon(lost())

    def _write_on(self) -> None:
        is_idle = self._writing is None or self._writing.done()
        if is_idle and (self._waiting or self._is_ending) and self._call is not None:
            self._writing = asyncio.create_task(self._write(self._call))

    async def _write(self, call: Streams) -> None:
        """One at a time: grpcio takes no second message while the first one waits for the worker."""
        try:
            while self._waiting:
                data = self._waiting[0]
                await call.write(data)
                self._byte_count.sent += len(data) + _PREFIX_BYTES
                self._waiting.popleft()
            if self._is_ending:
                await call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # it is over, which the reader tells
        except asyncio.CancelledError:
            if not call.cancelled():
                raise

    async def _read(self, call: Streams) -> None:
        metadata = {key.encode(): _bytes(value) for key, value in await call.initial_metadata() or ()}
        if metadata and not self._metadata.done():
            self._metadata.set_result(metadata)
        error: RpcError | None = None
        try:
            while isinstance(data := await call.read(), bytes):  # and not the mark of the end
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
            if not self._given_up.done():
                self._given_up.set_result(None)
            self._loop.call_soon(self._tell_end, error)

    def _finish(self, error: RpcError | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._tell_end(error)

    def _tell_end(self, error: RpcError | None) -> None:
        self._waiting.clear()
        self._over()
        for task in (self._reading, self._writing):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        if not self._metadata.done():
            self._metadata.set_exception(error or RpcError(code_pb2.UNKNOWN, "ended before it began"))
            self._metadata.exception()  # whether anybody waits for it or not
        if not self._has_begun:
            return
        try:
            self._on_end(error)
        except Exception:
            logger.exception("the end of a call could not be handled")


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
