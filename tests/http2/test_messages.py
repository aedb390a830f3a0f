"""gRPC's messages, however the body is cut."""

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.http2.grpc import PREFIX
from antiphon.http2.messages import Message, MessageCompressed, Messages, MessageTooLarge

MOST = 100

bodies = st.lists(st.binary(max_size=MOST), max_size=6)


def framed(message: bytes) -> bytes:
    return PREFIX.pack(0, len(message)) + message


def cut(body: bytes, at: list[int]) -> list[memoryview]:
    ends = sorted({min(place, len(body)) for place in at} | {0, len(body)})
    return [memoryview(body)[begin:end] for begin, end in pairwise(ends)]


@given(bodies, st.lists(st.integers(0, 700)))
def test_a_body_may_be_cut_anywhere(sent: list[bytes], at: list[int]) -> None:
    heard, messages = [], Messages(MOST)

    def take(message: Message) -> bool:
        heard.append(bytes(message))
        return True

    for part in cut(b"".join(map(framed, sent)), at):
        assert not messages.read(part, take)
    assert heard == sent
    assert messages.is_between


@given(bodies, st.lists(st.integers(0, 700)), st.lists(st.booleans()))
def test_what_is_not_wanted_yet_is_given_back(sent: list[bytes], at: list[int], wanted: list[bool]) -> None:
    heard, messages, answers = [], Messages(MOST), iter(wanted)

    def take(message: Message) -> bool:
        heard.append(bytes(message))
        return next(answers, True)

    for part in cut(b"".join(map(framed, sent)), at):
        rest = part
        while rest:
            before = len(heard)
            rest = messages.read(rest, take)
            assert not rest or len(heard) > before
    assert heard == sent


@pytest.mark.parametrize("end", range(1, len(framed(b"four"))))
def test_a_body_that_stops_in_a_message(end: int) -> None:
    messages = Messages(MOST)
    messages.read(memoryview(framed(b"four")[:end]), lambda message: True)
    assert not messages.is_between


@pytest.mark.parametrize("first", [1, 4, 5, 50])
def test_a_message_is_as_large_as_is_taken(first: int) -> None:
    heard: list[int] = []
    for size in (MOST, MOST + 1):
        messages, body = Messages(MOST), memoryview(framed(bytes(size)))

        def read(messages: Messages = messages, body: memoryview = body) -> None:
            for part in (body[:first], body[first:]):
                messages.read(part, lambda message: not heard.append(len(message)))

        if size <= MOST:
            read()
        else:
            with pytest.raises(MessageTooLarge, match="101 bytes, at most 100"):
                read()
    assert heard == [MOST]


def test_a_long_message() -> None:
    sent, heard = bytes(range(256)) * 2000, []
    messages, body = Messages(len(sent)), framed(sent)
    for part in cut(body, list(range(0, len(body), 16_384))):
        messages.read(part, lambda message: not heard.append(bytes(message)))
    assert heard == [sent]


def test_a_size_that_is_only_claimed_takes_little() -> None:
    messages, part = Messages(2**25), memoryview(PREFIX.pack(0, 2**25) + b"x")
    tracemalloc.start()
    try:
        messages.read(part, lambda message: True)
        assert tracemalloc.get_traced_memory()[0] < 2**18
    finally:
        tracemalloc.stop()


def test_a_compressed_message() -> None:
    with pytest.raises(MessageCompressed):
        Messages(MOST).read(memoryview(b"\1\0\0\0\1x"), lambda message: True)
