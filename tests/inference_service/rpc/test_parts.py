"""The parts of a large request are counted before it is parsed."""

from contextlib import suppress

import pytest

from antiphon.v1 import inference_service_pb2 as pb
from inference_service.errors import PayloadInvalid
from inference_service.rpc.messages.requests import BYTES_PER_PART, MOST_PARTS, Decoder
from inference_service.session.units import Stream

UNKNOWN = 1000
UNIT = pb.PrefillRequest.DESCRIPTOR.fields_by_name["unit"].number
TURN = pb.PrefillRequest.DESCRIPTOR.fields_by_name["turn"].number
STREAM = pb.PrefillRequest.DESCRIPTOR.fields_by_name["stream"].number
IDS = pb.StreamInput.DESCRIPTOR.fields_by_name["token_ids"].number
MESSAGES = pb.TurnInput.DESCRIPTOR.fields_by_name["messages"].number


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number: int, wire: int, data: bytes = b"") -> bytes:
    """Return a field as it travels; `wire` 2 has its length before it."""
    return varint(number << 3 | wire) + (varint(len(data)) if wire == 2 else b"") + data


def numbers(size: int) -> bytes:
    """Return a request with packed ids of `size` bytes, and a field behind them: four parts besides."""
    ids = pb.TokenIds(ids=[1] * size).SerializeToString() + field(UNKNOWN, 0, b"\x01")
    return field(STREAM, 2, field(IDS, 2, ids))


async def is_accepted(data: bytes) -> bool:
    """Return whether a request of these bytes has few enough parts."""
    with suppress(PayloadInvalid):
        await Decoder().read(Stream.PREFILL, data, lambda request: request)
        return True
    return False


PARTS = {
    "integers": field(UNIT, 0, b"\x01"),
    "unknown integers": field(UNKNOWN, 0, b"\x81\x01"),
    "unknown 64-bit numbers": field(UNKNOWN, 1, bytes(8)),
    "unknown 32-bit numbers": field(UNKNOWN, 5, bytes(4)),
    "unknown bytes": field(UNKNOWN, 2, bytes(600)),
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
async def test_request_of_the_most_parts_is_accepted_and_one_more_rejected(part: bytes) -> None:
    assert await is_accepted(part * MOST_PARTS)
    assert not await is_accepted(part * (MOST_PARTS + 1))


async def test_parts_of_nested_messages_count_with_their_message() -> None:
    inner = field(MESSAGES, 2) * (MOST_PARTS - 2)
    assert await is_accepted(field(UNIT, 0, b"\x01") + field(TURN, 2, inner))
    assert not await is_accepted(field(UNIT, 0, b"\x01") * 2 + field(TURN, 2, inner))
    nested = field(MESSAGES, 2, field(UNKNOWN, 0, b"\x01") * 7)
    most, rest = divmod(MOST_PARTS - 1, 8)
    assert await is_accepted(field(TURN, 2, nested * most + field(MESSAGES, 2) * rest))
    assert not await is_accepted(field(TURN, 2, nested * most + field(MESSAGES, 2) * (rest + 1)))


@pytest.mark.parametrize("wire", [3, 4, 6, 7])
async def test_group_or_unknown_wire_type_is_rejected(wire: int) -> None:
    assert not await is_accepted(field(UNIT, 0, b"\x01") + field(UNKNOWN, wire))


async def test_packed_numbers_count_by_their_size_and_text_does_not() -> None:
    parts = MOST_PARTS - 4
    assert await is_accepted(numbers(parts * BYTES_PER_PART))
    assert not await is_accepted(numbers((parts + 1) * BYTES_PER_PART))
    text = pb.StreamInput(text="x" * (MOST_PARTS + 1) * BYTES_PER_PART)
    assert await is_accepted(pb.PrefillRequest(stream=text).SerializeToString())
