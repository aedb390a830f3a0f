"""What is asked of a connection to a worker, whoever speaks gRPC on it; see `dialler` for who does."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Sized
from typing import Final, Protocol, TypeAlias, TypeVar

from google.protobuf.message import Message
from google.rpc import code_pb2

from antiphon.v1 import inference_service_pb2 as pb

CONNECT_TIMEOUT_S: Final = 5.0
"""How long a connection may take, from the first packet to the worker's first settings."""

NEXT_ADDRESS_S: Final = 0.25
"""After how long the next address of a name is tried beside one that does not answer: RFC 8305, section 8."""

FULL_S: Final = 0.02
"""How long no call is made after one was refused: a worker may count those that have just ended."""

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name

Metadata: TypeAlias = Sequence[tuple[str, str]]
Received: TypeAlias = dict[bytes, bytes]
"""Metadata as it comes."""

Response = TypeVar("Response", bound=Message)


def path_of(method: str) -> str:
    """What a call asks for."""
    return f"/{_SERVICE}/{method}"


class RpcError(Exception):
    """How a call ended. `code` is one of `google.rpc.Code`, `details` a serialised `google.rpc.Status`.

    After `was_refused` the worker has not looked at the call, which may be made again.
    """

    def __init__(self, code: int, message: str, details: bytes = b"", *, was_refused: bool = False) -> None:
        super().__init__(f"{code_pb2.Code.Name(code)}: {message}")
        self.code = code
        self.details = details
        self.was_refused = was_refused


async def answered(attempt: Callable[[bool], Awaitable[Response]], timeout_s: float) -> Response:
    """What `attempt` returns; made again, and told so, while the worker refuses it unseen.

    Raises `RpcError`.
    """
    again = False
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return await attempt(again)
                except RpcError as error:
                    if not error.was_refused:
                        raise
                again = True
    except TimeoutError:
        raise RpcError(code_pb2.DEADLINE_EXCEEDED, f"no answer within {timeout_s:g} s") from None


class Call(Protocol):
    """One call, a stream of messages each way.

    What comes, is handed on at once: whoever listens bounds what is kept. What goes, waits here while the
    worker does not read.
    """

    @property
    def waiting(self) -> Sized:
        """What was written and has not left yet, in whole or in part."""

    async def start(self, *, again: bool = False) -> None:
        """Sends the request's headers once the worker takes one more call; `again` after it refused one.

        Raises `RpcError`.
        """

    async def initial_metadata(self) -> Received:
        """What the worker sends before any message. Raises `RpcError` if the call ends without it."""

    def write(self, message: Message) -> None:
        """Sends `message` behind those written before; never waits. After the end it does nothing."""

    def write_serialized(self, *parts: bytes) -> None:
        """The same with a message that is serialised already."""

    def half_close(self) -> None:
        """Nothing more will be written."""

    def cancel(self) -> None:
        """Ends the call from this side; its end is told a little later."""


class Channel(Protocol):
    """Calls to one worker over one connection, made when there is a call and again after it is lost.

    The target's name is resolved for each connection, and all of its addresses are tried. A connection that
    the worker is leaving carries its last calls beside the next one.
    """

    @property
    def target(self) -> str:
        """Where the worker is."""

    async def ask(
        self, method: str, request: Message, answer: type[Response], *, timeout_s: float
    ) -> Response:
        """A call with one message each way. Raises `RpcError`."""

    def call(
        self,
        method: str,
        response: type[Response],
        on_message: Callable[[Response], None],
        on_end: Callable[[RpcError | None], None],
        *,
        timeout_s: float,
        metadata: Metadata = (),
    ) -> Call:
        """A call that can be started, and lasts `timeout_s` at most.

        `on_message` is called for each answer, and once the call has begun, `on_end` once: None for OK. A
        call whose answer cannot be handled, as `on_message` raises, is logged and cancelled.
        """

    def hang_up(self) -> None:
        """Ends every connection with all its calls; the next call makes another."""

    def close(self) -> None:
        """Ends every connection with all its calls, and there is no further one."""

    async def wait_closed(self) -> None:
        """Waits until what `close` has begun is over."""
