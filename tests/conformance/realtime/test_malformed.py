"""Section 7.2: malformed input is one clear error and nothing is lost; and section 1, what a URL means."""

import asyncio
import json
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from tests.conformance.support.client import BINARY, PING, PONG, TEXT, Client, Event, kind, kinds
from tests.conformance.support.match import SOME_TEXT, Text, With, error
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import CLOSE, G2, G3, Words, both, f32, without
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


# ------------------------------------------------------------------- 7.2, input that closes the connection


@STATES
@pytest.mark.parametrize(
    "frame",
    [
        "",
        "hello",
        '{"type":"session.close"',
        '{"type":"session.close"} x',
        "{'type':'session.close'}",
        '{"type":"input.append","input":{"audio":NaN}}',
        '{"type":"session.init","payload":{"config":{"temperature":Infinity}}}',
        '{"type":"session.init","payload":{"config":{"temperature":-Infinity}}}',
        '{"type":"\\ud800"}',
        "[" * 100_000,
        "\ufeff{}",
    ],
    ids=lambda frame: frame[:24] or "empty",
)
async def test_not_json(stack: Stack, words: Words | None, frame: str) -> None:
    """7.2 not JSON; NaN or Infinity literal: `invalid_json`, close 1003. What the decoder refuses is that."""
    async with stack.client() as client:
        await enter(client, words)
        await client.send(frame)
        assert await client.end() == ([error("invalid_json")], 1003)


@STATES
async def test_binary_frame(stack: Stack, words: Words | None) -> None:
    """7.2 binary frame: `invalid_frame`, close 1003, whatever it holds."""
    async with stack.client() as client:
        await enter(client, words)
        await client.send(json.dumps(CLOSE).encode())
        assert await client.end() == ([error("invalid_frame")], 1003)


@STATES
async def test_invalid_utf8(stack: Stack, words: Words | None) -> None:
    """7.2 invalid UTF-8 in a text frame: close 1007, no event; checked over the whole frame."""
    for bad in (
        b'{"type":"session.close","reason":"\xff"}',
        b'{"type":"session.close"}\xc3',
        b"\xed\xa0\x80",
    ):
        async with stack.raw_client() as client:
            await client.expect("session.queue_done")
            if words is not None:
                await client.send(words.init())
                await client.expect("session.created")
            await client.frame(TEXT, bad)
            events, code, _ = await client.end()
            assert (events, code) == ([], 1007)


@STATES
async def test_invalid_utf8_inside_long_audio(stack: Stack, words: Words | None) -> None:
    """7.2: UTF-8 is checked over the whole frame, also where base64 is expected."""
    async with stack.raw_client() as client:
        await client.expect("session.queue_done")
        if words is not None:
            await client.send(words.init())
            await client.expect("session.created")
        frame = json.dumps((words or G3).append()).encode()
        await client.frame(TEXT, frame.replace(b"zcz", b"z\xffz", 1))
        events, code, _ = await client.end()
        assert (events, code) == ([], 1007)


async def test_message_over_the_limit(stack: Stack) -> None:
    """7.2 message over the limit: close 1009, no event; 9.1: 16 MiB. One at the limit is read."""
    async with stack.raw_client() as client:
        await client.expect("session.queue_done")
        await client.frame(TEXT, json.dumps({"type": "x"}).encode().ljust(16 * 2**20))
        await client.expect("error:unknown_event")
        await client.frame(TEXT, json.dumps({"type": "x"}).encode().ljust(16 * 2**20 + 1))
        events, code, _ = await client.end()
        assert (events, code) == ([], 1009)


async def test_message_over_the_limit_in_fragments(stack: Stack) -> None:
    """7.2 message over the limit: also if each of its fragments is within it."""
    async with stack.raw_client() as client:
        await client.expect("session.queue_done")
        await client.frame(TEXT, b" " * 9 * 2**20, fin=False)
        await client.frame(0, b" " * 9 * 2**20, fin=False)
        events, code, _ = await client.end()
        assert (events, code) == ([], 1009)


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
    """7.2 bad WebSocket framing: close 1002."""
    async with stack.raw_client() as client:
        await client.expect("session.queue_done")
        await client.frame(opcode, b"{}", **fields)
        events, code, _ = await client.end()
        assert (events, code) == ([], 1002)


@both
async def test_fragments_and_pings_are_fine(stack: Stack, words: Words) -> None:
    """7.2, the other side: a message in fragments, also cut inside a character, with a ping between them."""
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


# ----------------------------------------------------------- 7.2, input that is refused and nothing is lost


@STATES
@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("[]", error("invalid_payload")),
        ('"session.init"', error("invalid_payload")),
        ("5", error("invalid_payload")),
        ("null", error("invalid_payload")),
        ("true", error("invalid_payload")),
        ("{}", error("missing_field", "type")),
        ('{"type":null}', error("missing_field", "type")),
        ('{"type":""}', error("missing_field", "type")),
        ('{"type":5}', error("invalid_payload", "type")),
        ('{"type":["session.init"]}', error("invalid_payload", "type")),
        ('{"type":"Session.Init"}', error("unknown_event", "type")),
        ('{"type":"response.create"}', error("unknown_event", "type")),
        ('{"type":"session.init","type":"x"}', error("unknown_event", "type")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_refused_and_unharmed(stack: Stack, words: Words | None, frame: str, expected: Event) -> None:
    """7.2: not an object: `invalid_payload`; `type` missing, no string, unknown: its code. No close.

    With duplicate keys the last counts.
    """
    async with stack.client() as client:
        await enter(client, words)
        assert await client.ask(frame) == expected
        await assert_unharmed(client, words)


@both
async def test_messages_leak_nothing(stack: Stack, words: Words) -> None:
    """7.2: messages name field, expectation and what came; no trace, validator text, address or path."""
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


@both
async def test_deep_nesting_and_many_items(stack: Stack, words: Words) -> None:
    """7.2: an event that is only large is refused or ignored, and the next one is answered."""
    deep: Any = 5
    for _ in range(500):
        deep = [deep]
    async with stack.client() as client:
        await words.begin(client)
        await client.send(words.append(nonsense=deep))
        assert kind(await client.next()) in (words.listen, "error:invalid_payload")
        many = json.dumps({"type": "x", "items": [0] * 100_000})
        assert kind(await client.ask(many)) == "error:invalid_payload"
        await client.send(words.append())
        await client.expect(words.listen)


# ------------------------------------------------------------------------------------------- 7.2, floods


@STATES
async def test_too_many_errors(stack: Stack, words: Words | None) -> None:
    """7.2: more than 20 `error` answers in 1 s: `rate_limited`, 1008."""
    async with stack.client() as client:
        await enter(client, words)
        await client.send(*[{"type": "x"}] * 30)
        events, code = await client.end()
        assert kinds(events) == ["error:unknown_event"] * 20 + ["error:rate_limited"]
        assert events[-1] == error("rate_limited")
        assert code == 1008


@both
async def test_too_many_events(stack: Stack, words: Words) -> None:
    """7.2: more than 1000 events in 5 s: `rate_limited`, 1008, each of them good as it may be."""
    async with stack.client() as client:
        await words.begin(client, hang("generate"))
        await client.send(*[words.append(1) for _ in range(5000)])  # 200 a second are forgiven
        events, code = await client.end()
        assert (events, code) == ([error("rate_limited")], 1008)


@both
async def test_neighbours_are_not_disturbed(stack: Stack, words: Words) -> None:
    """7.2: whatever one client sends, the session beside it goes on."""
    async with stack.client() as good:
        await words.begin(good)
        for bad in ("x", b"\x00", "[" * 50_000, json.dumps({"type": "x"})):
            async with stack.client() as client:
                await client.send(*[bad] * 25)
                await client.end()
            await good.send(words.append())
            await good.expect(words.listen)


# ------------------------------------------------------------------------------ section 1, what a URL means


@pytest.mark.parametrize(
    ("target", "mode"),
    [
        ("/v1/realtime", "video"),
        ("/v1/realtime/", "video"),
        ("/v1/realtime?mode=", "video"),
        ("/v1/realtime?mode=video", "video"),
        ("/v1/realtime/?mode=audio", "audio"),
        ("/v1/realtime?mode=audio&session_id=x&client_id=y&autostart=1&token=z&model=m", "audio"),
        ("/v1/realtime?mode=audio&mode=chaos", "audio"),
    ],
)
@both
async def test_selection(stack: Stack, words: Words, target: str, mode: str) -> None:
    """Section 1 rules 1 and 5: `mode`, else video; unknown parameters are ignored, a slash is accepted."""
    async with stack.client(target) as client:
        await client.expect("session.queue_done")
        running = (await stack.request("/api/queue"))[1]["running_tasks"]
        assert {task["request_type"] for task in running} >= {
            {"audio": "audio_duplex", "video": "omni_duplex"}[mode]
        }
        await client.send(words.init())
        await client.expect("session.created")


@pytest.mark.parametrize(
    ("target", "subprotocols", "code"),
    [
        ("/v1/realtime?mode=chaos", None, "unsupported_mode"),
        ("/v1/realtime?mode=AUDIO", None, "unsupported_mode"),
    ],
)
async def test_selection_that_is_not_served(
    stack: Stack, target: str, subprotocols: list[str] | None, code: str
) -> None:
    """Section 1 rules 1 to 4: after the upgrade one `error` that names `?mode=`, then Close 1008."""
    async with stack.client(target, subprotocols=subprotocols) as client:
        events, close = await client.end()
        assert events == [error(code)]
        assert "?mode=" in events[0]["error"]["message"]
        assert close == 1008


@pytest.mark.parametrize("query", ["mode=transcription", "intent=transcription"])
async def test_selection_of_transcription_without_a_model_for_it(stack: Stack, query: str) -> None:
    """Section 1: T by query, where no worker can transcribe: `error{unsupported_mode}`, close 1008."""
    async with stack.client(f"/v1/realtime?{query}") as client:
        events, code = await client.end()
        assert (kinds(events), code) == (["error:unsupported_mode"], 1008)


@both
async def test_subprotocol(stack: Stack, words: Words) -> None:
    """Section 1: `realtime` is selected if offered, whichever dialect was chosen; otherwise none."""
    offered = ["other", "realtime", "openai-insecure-api-key.x"]
    async with stack.client(subprotocols=offered) as client:
        assert client.socket.subprotocol == "realtime"
        await words.begin(client)
    async with stack.client(subprotocols=["other"]) as client:
        assert client.socket.subprotocol is None
        await words.begin(client)


async def test_compression_is_never_negotiated(stack: Stack) -> None:
    """Section 1: compression is never negotiated."""
    async with stack.client(compression="deflate") as client:
        assert client.socket.protocol.extensions == []
        await G3.begin(client)


async def test_http_answers(stack: Stack) -> None:
    """Section 1: an unknown path is 404, a plain GET on a WebSocket path 426, both in HTTP."""
    problem = {"error": {"code": SOME_TEXT, "message": SOME_TEXT}, "detail": SOME_TEXT}
    assert await stack.request("/v1/realtime?mode=audio") == (426, problem)
    assert await stack.request("/v1/nonsense") == (404, problem)
    with pytest.raises(InvalidStatus) as refused:
        async with stack.client("/v1/nonsense"):
            pass
    assert refused.value.response.status_code == 404


async def test_close_before_anything(stack: Stack) -> None:
    """Section 1 with 3.5: `session.close` as the only event, on either mode."""
    for mode in ("audio", "video"):
        async with stack.client(f"/v1/realtime?mode={mode}") as client:
            await client.send(CLOSE)
            events, code = await client.end()
            assert without(events[-1], "usage") == With(type="session.closed")
            assert code == 1000


async def test_opcode_of_a_message_is_that_of_its_first_frame(stack: Stack) -> None:
    """7.2 binary frame: also in fragments."""
    async with stack.raw_client() as client:
        await client.expect("session.queue_done")
        await client.frame(BINARY, b"{", fin=False)
        await client.frame(0, b"}")
        events, code, reason = await client.end()
        assert (events, code) == ([error("invalid_frame")], 1003)
        assert len(reason.encode()) <= 123


async def test_many_short_lived_clients(stack: Stack) -> None:
    """3.5: a dropped connection releases at once, however many there are."""

    async def visit(n: int) -> None:
        async with stack.client() as client:
            words = (G3, G2)[n % 2]
            client.ignored = {"session.queued", "session.queue_update"}
            await words.begin(client, hang("generate"))
            await client.send(words.append(audio=f32(16_000)))
            client.vanish()

    for _ in range(3):
        await asyncio.gather(*map(visit, range(16)))
