"""Whole events of a unit as a client of `session.init` gets them."""

import pytest

from tests.conformance.support.client import Event, kinds
from tests.conformance.support.match import (
    INPUT_ID,
    RESPONSE_ID,
    SESSION_ID,
    UNIX_S,
    USAGE,
    Exactly,
    Number,
    Text,
    With,
    error,
)
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import CLOSE, G3, f32, plays, samples_of
from tests.support.scripted_engine import (
    PROMPT_TOKENS,
    End,
    Failure,
    Play,
    fails,
    hang,
    listen,
    speak,
    turn_end,
)

METRICS = Exactly(
    {
        "kv_cache_length": Number(PROMPT_TOKENS, 4096),
        "n_past_max": 4096,
        "generate_ms": Number(),
        "wall_clock_ms": Number(),
        "n_tokens": 1,
        "n_tts_tokens": 0,
    },
    {"prefill_ms": Number()},
)
"""`metrics` of a unit of the scripted model. What is not known is absent: the time of a prefill comes on
another stream than the end of its unit.
"""


def delta(kind: str, *, first: int | None = None, **fields: object) -> Event:
    """A `response.output.delta`; with `first` it is the first event of that unit, which tells its tokens."""
    event: Event = {
        "type": "response.output.delta",
        "kind": kind,
        "session_id": SESSION_ID,
        "input_id": INPUT_ID,
        "metrics": METRICS,
        "server_send_ts": UNIX_S,
    }
    if first is not None:
        event |= {"chunk_index": first, "usage": USAGE, "chunk_usage": USAGE}
    return event | fields


async def test_a_unit_comes_whole_and_in_input_order(stack: Stack) -> None:
    async with stack.client() as client:
        first = Play(says=(("Se", 0.5), ("ven", 0.5)), end=End.CHUNK, hold="generate")
        await G3.begin_script(client, plays(first, turn_end("."), key="whole"))
        await client.send(G3.append(input_id="a"), G3.append(input_id="b"))
        assert await client.ask({"type": "unknown"}) == error("unknown_event", "type")
        stack.worker.release("whole", "generate", 1)
        events = await client.take(5)
        assert [(event["kind"], event["input_id"]) for event in events] == [
            ("text", "a"),
            ("audio", "a"),
            ("text", "b"),
            ("audio", "b"),
            ("listen", "b"),
        ]
        assert events[0]["text"] == "Seven"
        samples = samples_of(events[1])
        assert (samples.size, samples.max()) == (24_000, pytest.approx(0.1, abs=1e-3))
        assert all(("text" in event) + ("audio" in event) == (event["kind"] != "listen") for event in events)


async def test_listen_inside_a_response_closes_it(stack: Stack) -> None:
    async with stack.client() as client:
        await G3.begin(client, speak("Well"), listen(), listen(), speak("Now"))
        await client.send(*[G3.append()] * 4)
        events = await client.take(6)
        assert events == [
            delta("text", first=0, text="Well", response_id=RESPONSE_ID),
            delta("audio", audio=Text(".+"), response_id=RESPONSE_ID),
            delta("listen", first=1, response_id=events[0]["response_id"]),
            delta("listen", first=2),
            delta("text", first=3, text="Now", response_id=RESPONSE_ID),
            delta("audio", audio=Text(".+"), response_id=events[4]["response_id"]),
        ]
        assert events[4]["response_id"] != events[0]["response_id"]


async def test_the_end_of_a_turn_is_one_more_listen(stack: Stack) -> None:
    async with stack.client() as client:
        await G3.begin(client, turn_end("Yes."), listen())
        await client.send(G3.append(), G3.append())
        events = await client.take(4)
        response = events[0]["response_id"]
        assert events == [
            delta("text", first=0, text="Yes.", response_id=RESPONSE_ID),
            delta("audio", audio=Text(".+"), response_id=response),
            delta("listen", reason="turn_end", response_id=response),
            delta("listen", first=1),
        ]


async def test_a_failed_unit_is_an_error_and_a_listen(stack: Stack) -> None:
    async with stack.client() as client:
        await G3.begin(client, speak("Well"), fails(), listen())
        await client.send(*[G3.append(input_id=name) for name in "abc"])
        text, _, failed, listened, after = await client.take(5)
        assert failed == error("inference_error", side="server_error", input_id="b")
        assert "unit failed" not in failed["error"]["message"]
        assert listened == delta("listen", first=1, input_id="b", response_id=text["response_id"])
        assert after == delta("listen", first=2, input_id="c")


async def test_three_failures_in_a_row_end_the_session(stack: Stack) -> None:
    refused = Play(refused=Failure("AUDIO_INVALID", "secret of a neighbour"))
    async with stack.client() as client:
        failing = [fails()] * 2
        created = await G3.begin(client, *failing, listen(), *failing, refused, *failing, fails())
        await client.send(*[G3.append()] * 9)
        events, code = await client.end()
        failed = ["error:inference_error", "listen"]
        assert kinds(events) == [
            *failed * 2,
            "listen",
            *failed * 2,
            "error:invalid_payload",
            "listen",
            *failed * 3,
            "session.closed",
        ]
        assert "neighbour" not in str(events)
        assert events[-1] == With(reason="backend_error", session_id=created["session_id"])
        assert code == 1011


async def test_session_closed_is_last_and_once(stack: Stack) -> None:
    async with stack.client() as client:
        created = await G3.begin(client, listen(), hang("generate"))
        await client.send(*[G3.append()] * 5)
        await client.expect("listen")
        bad = {"type": "session.close", "reason": 5}
        assert await client.ask(bad) == error("invalid_payload", "reason")
        await client.send(CLOSE, CLOSE)
        closed = {"type": "session.closed", "session_id": created["session_id"], "reason": "user_stop"}
        assert await client.end() == ([{**closed, "usage": USAGE}], 1000)


async def test_conversation_of_the_documents_examples(stack: Stack) -> None:
    async with stack.client() as client:
        await client.expect("session.queue_done")
        voice = {"ref_audio_base64": f32(8_000)}
        payload = {"system_prompt": "Answer briefly.", "config": {"length_penalty": 1.1}, "voice": voice}
        await client.send({"type": "session.init", "payload": payload})
        await client.expect("session.created")
        given = {"audio": "AAAAAI/C9Tw=", "video_frames": ["/9j/4AAQ..."], "force_listen": True}
        append = {"type": "input.append", "input": {**given, "max_slice_nums": 1, "input_id": "in-7"}}
        refused = await client.ask(append)
        assert refused == With(kind="listen", input_id="in-7")
        assert refused["metrics"] == With(padded_samples=15_998, ignored_frames=1)
        await client.send({"type": "session.close", "reason": "user_stop"})
        assert kinds((await client.end())[0]) == ["session.closed"]
