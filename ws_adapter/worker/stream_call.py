"""One bidirectional call of a session at a worker."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message
from google.rpc import code_pb2

from antiphon.semconv import METADATA_WORKER_ID, Reason
from ws_adapter.worker.failure import reason_of
from ws_adapter.worker.transport.http2_stream import Received
from ws_adapter.worker.transport.rpc import Call, Channel, Metadata
from ws_adapter.worker.transport.rpc_status import RpcError

logger = logging.getLogger(__name__)

WRITES_WAITING: Final = 16
"""More than a session's window of units and cancels can ever need."""

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class WorkerCall(Generic[Request, Response]):
    """Calls `on_message` for each answer and, once attached, `on_end` once: None for OK, else the reason."""

    def __init__(
        self,
        channel: Channel,
        method: str,
        response: type[Response],
        metadata: Metadata,
        deadline_s: float,
        on_message: Callable[[Response], None],
        on_end: Callable[[Reason | None], None],
    ) -> None:
        self._on_end = on_end
        self._is_attached = False
        self._is_cancelled = False
        self._refusal: RpcError | None = None
        self._make: Callable[[], Call[Response]] = lambda: Call(
            channel, method, response, on_message, self._ended, timeout_s=deadline_s, metadata=metadata
        )
        self._call = self._make()

    async def attached(self, worker_id: str) -> None:
        """Begins the call and waits until the worker has it.

        Raises `RpcError` if the worker refuses it, or if another one answers.
        """
        metadata = await self._begun()
        answering = metadata.get(METADATA_WORKER_ID.encode(), b"").decode("latin-1")
        if answering != worker_id:
            logger.warning("a call for worker %s was answered by %.64r", worker_id, answering)
            raise RpcError(code_pb2.UNAVAILABLE, "another worker answers")
        if self._refusal is not None:  # which came together with the metadata
            raise self._refusal
        self._is_attached = True

    async def _begun(self) -> Received:
        again = False
        while True:
            await self._call.start(again=again)
            try:
                return await self._call.initial_metadata()
            except RpcError as error:
                if not error.was_refused or self._is_cancelled:
                    raise
            self._call, self._refusal, again = self._make(), None, True

    def write(self, request: Request) -> None:
        """Sends `request` behind those written before; never waits. After the end it does nothing.

        Raises `asyncio.QueueFull` when too many wait.
        """
        self._require_room()
        self._call.write(request)

    def write_large(self, request: bytes) -> None:
        """The same with a message that is serialised already."""
        self._require_room()
        self._call.write_large(request)

    def _require_room(self) -> None:
        if len(self._call.waiting) >= WRITES_WAITING:
            raise asyncio.QueueFull

    def half_close(self) -> None:
        """Nothing more will be written."""
        self._call.half_close()

    def cancel(self) -> None:
        """Ends the call from this side."""
        self._is_cancelled = True
        self._call.cancel()

    def _ended(self, error: RpcError | None) -> None:
        if self._is_attached:
            self._on_end(None if error is None else reason_of(error))
        else:
            self._refusal = error or RpcError(code_pb2.UNKNOWN, "the call ended before it began")
