"""Requests on their way from bytes to messages: small ones at once, large ones beside the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from antiphon.v1 import inference_service_pb2 as pb
from inference_service.errors import BadField, PayloadInvalid
from inference_service.session.unit import Stream

LARGE = 1 << 18
"""Bytes of a message that is no longer decoded on the event loop: four seconds of sound."""
MOST_PARTS = 1 << 14
"""Fields of a large message, those of the messages in it included."""
NUMBERS_A_PART = 1 << 8
"""Bytes of a list of numbers that count as one of them."""
_THREADS = 2

REQUESTS: dict[Stream, type[Message]] = {
    Stream.PREFILL: pb.PrefillRequest,
    Stream.GENERATE: pb.GenerateRequest,
    Stream.FINALIZE: pb.FinalizeRequest,
}
"""What comes on each stream."""

T = TypeVar("T")


class Decoder(Generic[T]):
    """Decodes requests in a small pool of threads; whoever asks waits, so that messages keep their order."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "decode")

    async def read(
        self, stream: Stream, data: bytes, make: Callable[[Message], T]
    ) -> tuple[Message, Callable[[], T]]:
        """The message in `data`, and what gives `make` of it or raises what that raised.

        Of a large message `make` has been called by then, in another thread; else it is called when asked
        for. Raises `PayloadInvalid` for bytes that are no such message, or one of too many parts.
        """
        kind = REQUESTS[stream]
        if len(data) <= LARGE:
            request = _decoded(kind, data)
            return request, lambda: make(request)
        return await asyncio.get_running_loop().run_in_executor(self._pool, _read, kind, data, make)


def _read(kind: type[Message], data: bytes, make: Callable[[Message], T]) -> tuple[Message, Callable[[], T]]:
    _require_few_parts(kind.DESCRIPTOR, data)
    request, made = _decoded(kind, data), Future[T]()
    try:
        made.set_result(make(request))
    except Exception as error:
        made.set_exception(error.with_traceback(None))
    return request, made.result


def _decoded(kind: type[Message], data: bytes) -> Message:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise PayloadInvalid(BadField("request", "is not a message of antiphon.v1")) from None


# ------------------------------------------------------------------------------------- how much there is


def _require_few_parts(kind: Any, data: bytes) -> None:
    """Raises `PayloadInvalid` unless there are few parts in `data`.

    A parser holds the interpreter until it is done: 32 MiB of empty messages take it most of a second, and a
    GiB. Looked at are tags and lengths only, of at most `MOST_PARTS` fields.
    """
    left, todo = MOST_PARTS, [(kind, 0, len(data))]
    while todo:
        message, at, end = todo.pop()
        while at < end:
            left -= 1
            if left < 0:
                problem = (
                    f"has more than {MOST_PARTS} parts, of which {NUMBERS_A_PART} bytes of numbers are one"
                )
                raise PayloadInvalid(BadField("request", problem))
            tag, at = _varint(data, at)
            field = message.fields_by_number.get(tag >> 3)
            match tag & 7:
                case 0:
                    _, at = _varint(data, at)
                case 1:
                    at += 8
                case 5:
                    at += 4
                case 2:
                    size, at = _varint(data, at)
                    if field is not None and field.message_type is not None:
                        todo.append((field.message_type, at, min(end, at + size)))
                    elif field is not None and field.type not in _BYTES:
                        left -= size // NUMBERS_A_PART
                    at += size
                case _:  # no such type since proto2; the parser refuses it
                    raise PayloadInvalid(BadField("request", "is not a message of antiphon.v1"))


_BYTES = (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING)
_LONGEST_VARINT = 10


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at an index, and the index behind it."""
    value = 0
    for i, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise PayloadInvalid(BadField("request", "is not a message of antiphon.v1"))
