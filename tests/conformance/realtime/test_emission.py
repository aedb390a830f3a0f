"""Section 3.3: what a unit looks like to a G3 client, whole events, and the examples of section 3.2."""

import numpy as np
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
from tests.conformance.support.words import CLOSE, G3, f32, plays, samples_of, without
from tests.support.scripted_engine import (
    PROMPT_TOKENS,
    UNIT_TOKENS,
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


async def test_rule_1_a_unit_comes_whole_and_in_input_order(stack: Stack) -> None:
    """3.3.1: rendered when its `UnitDone` arrives, all pieces together, in input order; one `kind` per frame.

    The first unit has said everything but is not done; the second waits behind it.
    """
    async with stack.client() as client:
        first = Play(says=(("Se", 0.5), ("ven", 0.5)), end=End.CHUNK, hold="generate")
        await G3.begin_script(client, plays(first, turn_end("."), key="rule-1"))
        await client.send(G3.append(input_id="a"), G3.append(input_id="b"))
        assert await client.ask({"type": "unknown"}) == error("unknown_event", "type")
        stack.worker.release("rule-1", "generate", 1)
        events = await client.take(5)
        assert [(event["kind"], event["input_id"]) for event in events] == [
            ("text", "a"),
            ("audio", "a"),
            ("text", "b"),
            ("audio", "b"),
            ("listen", "b"),
        ]
        assert events[0]["text"] == "Seven"
        assert samples_of(events[1]).size == 24_000
        assert all(("text" in event) + ("audio" in event) == (event["kind"] != "listen") for event in events)


async def test_rule_2_a_listening_unit_is_one_listen(stack: Stack) -> None:
    """3.3.2 LISTEN unit: one `listen`, without a `response_id` if none is open."""
    async with stack.client() as client:
        await G3.begin(client)
        await client.send(G3.append())
        assert await client.next() == delta("listen", first=0)


async def test_rule_2_a_listen_inside_a_response_closes_it(stack: Stack) -> None:
    """3.3.2: if a response is open (interrupted), it carries that `response_id`; the response is closed."""
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


@pytest.mark.parametrize(
    ("play", "expected"),
    [
        (speak("Seven"), ["text", "audio"]),
        (speak(""), ["audio"]),
        (Play(says=(("Seven", 0.0),), end=End.CHUNK), ["text", "audio"]),
        (Play(end=End.CHUNK), ["audio"]),
    ],
    ids=["text and audio", "no text", "no samples", "nothing"],
)
async def test_rule_3_a_speaking_unit(stack: Stack, play: Play, expected: list[str]) -> None:
    """3.3.3: at most one `text` (if not empty), then one `audio`; without samples 480 zeros (20 ms)."""
    async with stack.client() as client:
        await G3.begin(client, play)
        await client.send(G3.append(), G3.append())
        events = await client.take(len(expected) + 1)
        assert kinds(events) == [*expected, "listen"]
        samples = samples_of(events[-2])
        if play.says and play.says[0][1]:
            assert samples.size == 24_000
        else:
            assert samples.tolist() == [0.0] * 480


async def test_rule_4_the_end_of_a_turn_is_one_more_listen(stack: Stack) -> None:
    """3.3.4: one extra `listen` with the same `response_id` and `reason:"turn_end"`; then it is closed."""
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


async def test_rule_5_one_response_id_per_turn(stack: Stack) -> None:
    """3.3.5: `resp_` + 12 hex, made at the first speaking unit of a turn, equal on all its frames."""
    async with stack.client() as client:
        await G3.begin(client, speak("One"), speak("two"), turn_end("three."), turn_end("Four."))
        await client.send(*[G3.append()] * 4)
        ids = [event["response_id"] for event in await client.take(10)]
        assert ids == [ids[0]] * 7 + [ids[7]] * 3
        assert ids[0] != ids[7]
        assert ids[0] == RESPONSE_ID


async def test_rule_6_the_first_event_of_a_unit_tells_its_tokens(stack: Stack) -> None:
    """3.3.6: `chunk_index` counts units; `usage` is cumulative, `chunk_usage` this unit's; not repeated.

    Full `metrics` are on every event: clients overwrite their copy with each.
    """
    async with stack.client() as client:
        await G3.begin(client, listen(), turn_end("Yes."), listen())
        await client.send(*[G3.append()] * 3)
        listened, first, second, third, last = await client.take(5)
        assert [event.get("chunk_index") for event in (listened, first, second, third, last)] == [
            0,
            1,
            None,
            None,
            2,
        ]
        for event in (second, third):
            assert event["metrics"] == METRICS
            assert without(event["metrics"], "wall_clock_ms") == without(first["metrics"], "wall_clock_ms")
            assert not {"chunk_index", "usage", "chunk_usage"} & event.keys()
        unit = {
            "total_tokens": 13,
            "input_tokens": 12,
            "output_tokens": 1,
            "input_token_details": {
                "text_tokens": 2,
                "audio_tokens": 10,
                "vision_tokens": 0,
                "cached_tokens": 0,
            },
            "output_token_details": {"text_tokens": 1, "audio_tokens": 0},
        }
        assert listened["chunk_usage"] == first["chunk_usage"] == last["chunk_usage"] == unit
        assert [event["usage"]["total_tokens"] for event in (listened, first, last)] == [
            PROMPT_TOKENS + 13 * n for n in (1, 2, 3)
        ]
        assert [event["metrics"]["kv_cache_length"] for event in (listened, first, last)] == [
            PROMPT_TOKENS + UNIT_TOKENS * n for n in (1, 2, 3)
        ]


async def test_rule_7_input_id_is_that_of_the_append_that_completed_the_unit(stack: Stack) -> None:
    """3.3.7: the append that completed the unit; all units of a long append share it."""
    async with stack.client() as client:
        await G3.begin(client)
        await client.send(G3.append(8_000, input_id="a"), G3.append(8_000, input_id="b"))
        await client.send(G3.append(32_000, input_id="c"))
        assert [event["input_id"] for event in await client.take(3)] == ["b", "c", "c"]


async def test_rule_8_a_failed_unit_is_an_error_and_a_listen(stack: Stack) -> None:
    """3.3.8: `error{inference_error}` and then one `listen` for that unit, closing an open response."""
    async with stack.client() as client:
        await G3.begin(client, speak("Well"), fails(), listen())
        await client.send(*[G3.append(input_id=name) for name in "abc"])
        text, _, failed, listened, after = await client.take(5)
        assert failed == error("inference_error", side="server_error", input_id="b")
        assert "unit failed" not in failed["error"]["message"]
        assert listened == delta("listen", first=1, input_id="b", response_id=text["response_id"])
        assert after == delta("listen", first=2, input_id="c")


async def test_rule_8_three_failures_in_a_row_end_the_session(stack: Stack) -> None:
    """3.3.8: three in a row end the session (`backend_error`, 1011); fewer, or refused units, do not."""
    refused = Play(refused=Failure("AUDIO_INVALID", "too loud"))
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
        assert events[-1] == With(reason="backend_error", session_id=created["session_id"])
        assert code == 1011


async def test_rule_9_session_closed_is_last_and_once(stack: Stack) -> None:
    """3.3.9: the last event, exactly once, and the answer to every unit not yet answered."""
    async with stack.client() as client:
        created = await G3.begin(client, listen(), hang("generate"))
        await client.send(*[G3.append()] * 5)
        await client.expect("listen")
        await client.send(CLOSE, CLOSE)
        events, code = await client.end()
        assert events == [
            {
                "type": "session.closed",
                "session_id": created["session_id"],
                "reason": "user_stop",
                "usage": USAGE,
            }
        ]
        assert code == 1000


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "user_stop"),
        ({"reason": None}, "user_stop"),
        ({"reason": "user_stop"}, "user_stop"),
        ({"reason": "tab_closed_2"}, "tab_closed_2"),
        ({"reason": "x" * 64}, "x" * 64),
        ({"reason": "x" * 65}, "client_closed"),
        ({"reason": "Tab closed!"}, "client_closed"),
    ],
)
async def test_reason_of_session_closed(stack: Stack, given: Event, told: str) -> None:
    """7.1: `user_stop` or the client's own reason if it matches `[a-z0-9_]{1,64}`, else `client_closed`."""
    async with stack.client() as client:
        await G3.begin(client)
        await client.send({"type": "session.close", **given})
        events, code = await client.end()
        assert [without(event, "usage", "session_id") for event in events] == [
            {"type": "session.closed", "reason": told}
        ]
        assert code == 1000


async def test_reason_of_wrong_type(stack: Stack) -> None:
    """3.1 `session.close`: `reason` str O; 7.2: wrong JSON type is `invalid_payload` and nothing happens."""
    async with stack.client() as client:
        await G3.begin(client)
        assert await client.ask({"type": "session.close", "reason": 5}) == error("invalid_payload", "reason")
        await client.send(G3.append())
        await client.expect("listen")


async def test_output_audio_is_bounded_and_aligned(stack: Stack) -> None:
    """6.6: output is within [-1, 1] and finite; row 11.7: 4-byte aligned, frames of at most 16 MiB."""
    async with stack.client() as client:
        await G3.begin(client, speak("Tone", seconds=1.0))
        await client.send(G3.append())
        samples = samples_of((await client.take(2))[1])
        assert np.isfinite(samples).all()
        assert float(np.abs(samples).max()) <= 1.0


async def test_conversation_of_the_documents_examples(stack: Stack) -> None:
    """3.1 and 3.2: the examples of the document, sent as they are written there."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        await client.send(
            {
                "type": "session.init",
                "payload": {
                    "system_prompt": "Answer briefly.",
                    "config": {"length_penalty": 1.1},
                    "voice": {"ref_audio_base64": f32(8_000)},
                },
            }
        )
        await client.expect("session.created")
        refused = await client.ask(
            {
                "type": "input.append",
                "input": {
                    "audio": "AAAAAI/C9Tw=",
                    "video_frames": ["/9j/4AAQ..."],
                    "force_listen": True,
                    "max_slice_nums": 1,
                    "input_id": "in-7",
                },
            }
        )
        assert refused == With(kind="listen", input_id="in-7")
        assert refused["metrics"] == With(padded_samples=15_998, ignored_frames=1)
        await client.send({"type": "session.close", "reason": "user_stop"})
        assert kinds((await client.end())[0]) == ["session.closed"]
