"""Malformed input of `/v1/realtime` is one clear error and nothing is lost; and what its URL means."""

import json
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from tests.conformance.support.client import BINARY, PING, PONG, TEXT, Client, Event, kinds
from tests.conformance.support.match import SOME_TEXT, Text, error
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import CLOSE, G2, G3, Words, both
from tests.support.scripted_engine import hang, listen, speak

STATES = pytest.mark.parametrize("words", [None, G3, G2], ids=["CONNECTED", "G3", "G2"])
"""Before the dialect is chosen, and in each of the two."""


async def enter(client: Client, words: Words | None) -> Event | None:
    """Into that state; returns `session.created`."""
    if words is not None:
        return await words.begin(client, listen(), speak("still here"))
    await client.expect("session.queue_done")
    return None


async def assert_unharmed(client: Client, words: Words | None) -> None:
    """The session goes on as if nothing had been sent."""
    if words is None:
        words = G3
        await client.send(words.init())
        await client.expect("session.created")
        await client.send(words.append())
        await client.expect(words.listen)
        return
    await client.send(words.append(), words.append())
    await client.expect(words.listen)
    assert (await client.next())["text"] == "still here"


@STATES
@pytest.mark.parametrize(
    "frame",
    ["", "hello", '{"type":"input.append","input":{"audio":NaN}}', '{"type":"\\ud800"}', "[" * 100_000],
    ids=lambda frame: frame[:24] or "empty",
)
async def test_not_json(stack: Stack, words: Words | None, frame: str) -> None:
    async with stack.client() as client:
        await enter(client, words)
        await client.send(frame)
        assert await client.end() == ([error("invalid_json")], 1003)


@STATES
async def test_binary_frame(stack: Stack, words: Words | None) -> None:
    async with stack.client() as client:
        await enter(client, words)
        await client.send(json.dumps(CLOSE).encode())
        assert await client.end() == ([error("invalid_frame")], 1003)


async def test_opcode_of_a_message_is_that_of_its_first_frame(stack: Stack) -> None:
    async with stack.raw_client() as client:
        await client.expect("session.queue_done")
        await client.frame(BINARY, b"{", fin=False)
        await client.frame(0, b"}")
        events, code, reason = await client.end()
        assert (events, code) == ([error("invalid_frame")], 1003)
        assert len(reason.encode()) <= 123


@STATES
async def test_invalid_utf8(stack: Stack, words: Words | None) -> None:
    """The adapter checks the whole frame for invalid UTF-8, also where base64 is expected."""
    long_audio = json.dumps((words or G3).append()).encode()
    for bad in (
        b'{"type":"session.close","reason":"\xff"}',
        b'{"type":"session.close"}\xc3',
        b"\xed\xa0\x80",
        long_audio.replace(b"zcz", b"z\xffz", 1),
    ):
        async with stack.raw_client() as client:
            await client.expect("session.queue_done")
            if words is not None:
                await client.send(words.init())
                await client.expect("session.created")
            await client.frame(TEXT, bad)
            assert (await client.end())[:2] == ([], 1007)


async def test_message_over_the_limit(stack: Stack) -> None:
    async with stack.raw_client() as client:
        await client.expect("session.queue_done")
        await client.frame(TEXT, json.dumps({"type": "x"}).encode().ljust(16 * 2**20))
        await client.expect("error:unknown_event")
        await client.frame(TEXT, json.dumps({"type": "x"}).encode().ljust(16 * 2**20 + 1))
        assert (await client.end())[:2] == ([], 1009)


async def test_message_over_the_limit_in_fragments(stack: Stack) -> None:
    async with stack.raw_client() as client:
        await client.expect("session.queue_done")
        await client.frame(TEXT, b" " * 9 * 2**20, fin=False)
        await client.frame(0, b" " * 9 * 2**20, fin=False)
        assert (await client.end())[:2] == ([], 1009)


@pytest.mark.parametrize(
    ("opcode", "fields"),
    [
        (TEXT, {"reserved": 4}),
        (TEXT, {"masked": False}),
        (0x3, {}),
        (0x0, {}),
        (PING, {"fin": False}),
    ],
    ids=["reserved bit", "unmasked", "unknown opcode", "stray continuation", "fragmented ping"],
)
async def test_bad_framing(stack: Stack, opcode: int, fields: dict[str, Any]) -> None:
    async with stack.raw_client() as client:
        await client.expect("session.queue_done")
        await client.frame(opcode, b"{}", **fields)
        assert (await client.end())[:2] == ([], 1002)


@both
async def test_fragments_and_pings_are_fine(stack: Stack, words: Words) -> None:
    async with stack.raw_client() as client:
        await client.expect("session.queue_done")
        await client.send(words.init())
        await client.expect("session.created")
        frame = json.dumps(words.append(input_id="é"), ensure_ascii=False).encode()
        middle = frame.index("é".encode()) + 1
        await client.frame(TEXT, frame[:middle], fin=False)
        await client.frame(PING, b"now")
        assert await client.read() == (PONG, b"now")
        await client.frame(0, b"", fin=False)
        await client.frame(0, frame[middle:])
        assert (await client.expect(words.listen))["input_id"] == "é"


@STATES
@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("[]", error("invalid_payload")),
        ("{}", error("missing_field", "type")),
        ('{"type":5}', error("invalid_payload", "type")),
        ('{"type":"Session.Init"}', error("unknown_event", "type")),
        ('{"type":"session.init","type":"x"}', error("unknown_event", "type")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_refused_and_unharmed(stack: Stack, words: Words | None, frame: str, expected: Event) -> None:
    async with stack.client() as client:
        await enter(client, words)
        assert await client.ask(frame) == expected
        await assert_unharmed(client, words)


@both
async def test_messages_leak_nothing(stack: Stack, words: Words) -> None:
    async with stack.client() as client:
        await words.begin(client)
        events = [
            words.append(audio="\u0000" * 5000),
            words.append(input_id=["x" * 5000]),
            {"type": "x" * 5000},
            words.append(sample_rate="<script>" * 1000),
            words.append(max_slice_nums=10**30),
        ]
        for event in events:
            message = (await client.ask(event))["error"]["message"]
            assert len(message) < 200
            assert message == Text(r"[ -~]+")
            assert not any(
                word in message for word in ("Traceback", "msgspec", "Error", "/", "0x", "$.", "Expected `")
            )


@STATES
async def test_too_many_errors(stack: Stack, words: Words | None) -> None:
    async with stack.client() as client:
        await enter(client, words)
        await client.send(*[{"type": "x"}] * 30)
        events, code = await client.end()
        assert kinds(events) == ["error:unknown_event"] * 20 + ["error:rate_limited"]
        assert events[-1] == error("rate_limited")
        assert code == 1008


async def test_too_many_events(stack: Stack) -> None:
    """Each of them is good as it may be."""
    async with stack.client() as client:
        await G3.begin(client, hang("generate"))
        await client.send(*[G3.append(1) for _ in range(5000)])  # 200 a second are forgiven
        assert await client.end() == ([error("rate_limited")], 1008)


@both
async def test_neighbours_are_not_disturbed(stack: Stack, words: Words) -> None:
    async with stack.client() as good:
        await words.begin(good)
        for bad in ("x", b"\x00", "[" * 50_000, json.dumps({"type": "x"})):
            async with stack.client() as client:
                await client.send(*[bad] * 25)
                await client.end()
            await good.send(words.append())
            await good.expect(words.listen)


async def test_http_answers(stack: Stack) -> None:
    problem = {"error": {"code": SOME_TEXT, "message": SOME_TEXT}, "detail": SOME_TEXT}
    assert await stack.request("/v1/realtime?mode=audio") == (426, problem)
    assert await stack.request("/v1/nonsense") == (404, problem)
    with pytest.raises(InvalidStatus) as refused:
        async with stack.client("/v1/nonsense"):
            pass
    assert refused.value.response.status_code == 404
