"""Whole events of a unit as a client of `session.update` gets them."""

import pytest

from tests.conformance.realtime.test_emission import METRICS
from tests.conformance.support.client import Event, kinds
from tests.conformance.support.match import EARLIER_ID, INPUT_ID, RESPONSE_ID, Text, With, error
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import CLOSE, G2, samples_of
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


def length(unit: int) -> int:
    """`kv_cache_length` after that unit, counted from 1."""
    return PROMPT_TOKENS + UNIT_TOKENS * unit


def listening(unit: int, **fields: object) -> Event:
    return {
        "type": "response.listen",
        "kv_cache_length": length(unit),
        "input_id": INPUT_ID,
        "metrics": METRICS,
        **fields,
    }


def speaking(unit: int, text: str, *, end_of_turn: bool = False, **fields: object) -> Event:
    return {
        "type": "response.output_audio.delta",
        "text": text,
        "audio": Text(".*"),
        "end_of_turn": end_of_turn,
        "kv_cache_length": length(unit),
        "response_id": RESPONSE_ID,
        "input_id": INPUT_ID,
        "metrics": METRICS,
        **fields,
    }


async def test_one_event_per_unit(stack: Stack) -> None:
    async with stack.client() as client:
        script = (listen(), speak("Se", "ven"), turn_end(" is prime."), listen(), turn_end("Yes."))
        await G2.begin(client, *script)
        await client.send(*[G2.append()] * 5)
        events = await client.take(5)
        response = events[1]["response_id"]
        assert events == [
            listening(1),
            speaking(2, "Seven"),
            speaking(3, " is prime.", end_of_turn=True, response_id=response),
            listening(4),
            speaking(5, "Yes.", end_of_turn=True),
        ]
        assert events[4]["response_id"] != response
        assert [samples_of(event).size for event in events if "audio" in event] == [24_000, 12_000, 12_000]


@pytest.mark.parametrize("play", [Play(end=End.CHUNK), Play(end=End.TURN)])
async def test_text_and_audio_may_be_empty(stack: Stack, play: Play) -> None:
    async with stack.client() as client:
        await G2.begin(client, play)
        await client.send(G2.append())
        assert await client.next() == speaking(1, "", audio="", end_of_turn=play.end is End.TURN)


async def test_no_audio_output(stack: Stack) -> None:
    async with stack.client() as client:
        await G2.begin(
            client, Play(says=(("Hi", 0.0),), end=End.TURN), voice_config={"generate_audio": False}
        )
        await client.send(G2.append())
        assert await client.next() == speaking(1, "Hi", audio="", end_of_turn=True)


async def test_listen_inside_a_response_closes_it(stack: Stack) -> None:
    async with stack.client() as client:
        await G2.begin(client, speak("Well"), listen(), listen())
        await client.send(*[G2.append()] * 3)
        events = await client.take(3)
        assert events == [
            speaking(1, "Well"),
            listening(2, response_id=events[0]["response_id"]),
            listening(3),
        ]


async def test_failed_unit_is_an_error_and_a_listen(stack: Stack) -> None:
    refused = Play(refused=Failure("IMAGE_INVALID", "no picture"))
    async with stack.client() as client:
        created = await G2.begin(client, speak("Well"), fails(), refused, fails(), fails(), fails())
        await client.send(*[G2.append(input_id=name) for name in "abcdef"])
        events, code = await client.end()
        failed = ["error:inference_error", "response.listen"]
        assert kinds(events) == [
            "response.output_audio.delta",
            *failed,
            "error:invalid_payload",
            "response.listen",
            *failed * 3,
            "session.closed",
        ]
        assert events[1] == error("inference_error", side="server_error", input_id="b")
        assert events[2] == listening(2, input_id="b", response_id=events[0]["response_id"])
        assert events[-1] == {
            "type": "session.closed",
            "reason": "error",
            "session_id": created["session_id"],
        }
        assert code == 1011


@pytest.mark.parametrize("reason", [None, "timeout", "Something else!"])
async def test_closed_after_the_clients_close_is_stopped(stack: Stack, reason: str | None) -> None:
    async with stack.client() as client:
        await G2.begin(client, hang("generate"))
        await client.send(G2.append(), {"type": "session.close", "reason": reason})
        assert await client.end() == (
            [{"type": "session.closed", "reason": "stopped", "session_id": EARLIER_ID}],
            1000,
        )


async def test_conversation_of_the_documents_examples(stack: Stack) -> None:
    async with stack.client() as client:
        await client.expect("session.queue_done")
        update = {"type": "session.update", "session": {"instructions": "Answer briefly."}}
        bad = {"type": "session.update", "session": {"instructions": "x", "ref_audio": "UklGRiQA..."}}
        assert await client.ask(bad) == error("invalid_payload", "session.ref_audio")
        await client.send(update)
        await client.expect("session.created")
        append = {"type": "input_audio_buffer.append", "audio": "AAAAAI/C9Tw=", "force_listen": False}
        await client.send(append)
        assert (await client.next())["metrics"] == With(padded_samples=15_998)
        bad = {"type": "input_audio_buffer.append", "audio": "AAAAAI/C9Tw"}
        assert await client.ask(bad) == error("invalid_payload", "audio")
        await client.send(CLOSE)
        assert kinds((await client.end())[0]) == ["session.closed"]
