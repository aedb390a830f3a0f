"""One bidirectional call: a bounded queue and one task for writing, one task for reading."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import grpc
import grpc.aio

from antiphon.semconv import METADATA_WORKER_ID, Reason
from ws_adapter.worker_status import reason_of

logger = logging.getLogger(__name__)

WRITES_WAITING: Final = 16
"""More than a session's window of units and cancels can ever need."""

Request = TypeVar("Request")
Response = TypeVar("Response")


class WorkerCall(Generic[Request, Response]):
    """Calls `on_message` for each answer and `on_end` once: None for OK, else the reason."""

    def __init__(
        self,
        call: "grpc.aio.StreamStreamCall[Request, Response]",
        on_message: Callable[[Response], None],
        on_end: Callable[[Reason | None], None],
    ) -> None:
        self._call = call
        self._on_message = on_message
        self._on_end = on_end
        self._writes: list[Request | None] = []
        self._more: asyncio.Future[None] | None = None
        self._is_half_closed = False
        self._writer: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None

    async def attached(self) -> None:
        """Waits until the worker has the call, then begins to write and read.

        Raises `grpc.aio.AioRpcError` if the worker refuses it.
        """
        metadata: Any = await self._call.initial_metadata()
        if metadata is None or METADATA_WORKER_ID not in metadata:
            await self._call.read()  # raises what the worker refused it with
            raise RuntimeError("the worker ended a call before it began")
        self._writer = asyncio.create_task(self._write())
        self._reader = asyncio.create_task(self._read())

    def write(self, request: Request) -> None:
        """Sends `request` behind those written before; never waits. After the end it does nothing.

        Raises `asyncio.QueueFull` when too many wait.
        """
        if self._reader is not None and not self._reader.done() and not self._is_half_closed:
            if len(self._writes) >= WRITES_WAITING:
                raise asyncio.QueueFull
            self._put(request)

    def half_close(self) -> None:
        """Nothing more will be written."""
        if not self._is_half_closed:
            self._is_half_closed = True
            self._put(None)

    def cancel(self) -> None:
        """Ends the call from this side."""
        self._call.cancel()

    def _put(self, request: Request | None) -> None:
        self._writes.append(request)
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def _write(self) -> None:
        # An asyncio.Queue does the same at twice the price, and every unit is three writes.
        loop = asyncio.get_running_loop()
        try:
            while True:
                if not self._writes:
                    self._more = loop.create_future()
                    await self._more
                if (request := self._writes.pop(0)) is None:
                    break
                await self._call.write(request)
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            pass  # the call is over, and its reader says why

    async def _read(self) -> None:
        reason: Reason | None = None
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                self._on_message(message)  # type: ignore[arg-type]
        except grpc.aio.AioRpcError as error:
            reason = reason_of(error)
        except asyncio.CancelledError:
            reason = Reason.WORKER_LOST
        except Exception:
            logger.exception("an answer of the worker could not be handled")
            self._call.cancel()
            reason = Reason.WORKER_LOST
        finally:
            if self._writer is not None:
                self._writer.cancel()
        self._on_end(reason)
