"""Every event of a chat, and the fields of what asks for an answer, as the worker is given them."""

import base64

import numpy as np
import pytest

from tests.conformance.support.chat_words import (
    CHAT,
    CLOSE,
    INPUT_TOKENS,
    PREFILL_DONE,
    REALTIME,
    USER,
    append,
    begin,
    chunk,
    created,
    delta,
    done,
    place,
    request,
    response_done,
    scripted,
    told,
)
from tests.conformance.support.client import Event
from tests.conformance.support.match import Number, Text, With
from tests.conformance.support.stack import Stack
from tests.support.scripted_engine import End, Play, hang, speak, write
from tests.ws_adapter.support.chat_conversation import f32
from tests.ws_adapter.support.duplex_conversation import pictured

SOME_TEXT_OR_NONE = Text(".*")
TELLS = Play(tells=True, end=End.TURN)
SAYS = write("Sev", "en.")


def seconds_of(audio: str) -> float:
    samples = np.frombuffer(base64.b64decode(audio, validate=True), "<f4")
    assert np.abs(samples).max() == pytest.approx(0.1, abs=1e-3)
    return samples.size / 24_000


def streamed(events: list[Event]) -> tuple[str, float]:
    """Text and seconds of audio of a streamed answer, which has to be all that came.

    How many chunks there are is the worker's affair: what waits is joined.
    """
    first, *chunks, last = events
    assert first == PREFILL_DONE
    assert all(event == chunk(SOME_TEXT_OR_NONE, event["audio_data"]) for event in chunks)
    assert last["type"] == "done"
    text = "".join(event["text_delta"] for event in chunks)
    assert text == last["text"]
    return text, sum(seconds_of(event["audio_data"]) for event in chunks if event["audio_data"] is not None)


async def test_spoken_answer(chatter: Stack) -> None:
    async with chatter.client(CHAT) as client:
        await client.send(request(speak("Sev", "en.", seconds=1.0)))
        events, code = await client.end()

    assert streamed(events) == ("Seven.", 1.0)
    assert events[-1] == done("Seven.")
    assert code == 1000


async def test_answer_at_once(chatter: Stack) -> None:
    async with chatter.client(CHAT) as client:
        await client.send(request(speak("Sev", "en.", seconds=1.0), streaming=False))
        events, code = await client.end()

    assert events == [PREFILL_DONE, done("Seven.", audio=Text(".+"))]
    assert seconds_of(events[-1]["audio_data"]) == 1.0
    assert code == 1000


async def test_queue_events_only_after_a_wait(narrow_chatter: Stack) -> None:
    async with narrow_chatter.client(CHAT) as holder, narrow_chatter.client(CHAT) as client:
        await holder.send(request(hang("generate"), key="wait"))
        await holder.expect("prefill_done")
        await client.send(request(SAYS))
        queued = await client.next()
        assert queued == {"type": "queued", "eta_seconds": queued["estimated_wait_s"], **place(1)}
        _, queue = await narrow_chatter.request("/api/queue")
        assert [task["request_type"] for task in queue["running_tasks"]] == ["chat"]
        narrow_chatter.worker.release("wait", "generate", 1)
        assert (await client.next())["type"] == "queue_done"
        assert streamed((await client.end())[0]) == ("Seven.", 0.0)


DRAWN = {"max_new_tokens": 7, "temperature": 0.0, "top_p": 1.0, "length_penalty": 1.5}
IMAGE = {"max_slice_nums": 4, "use_image_id": False}
TOLD_SO = {"omni_mode": True, "enable_thinking": True}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {},
            {
                "sampling": {"max_new_tokens": 512, "temperature": 0.7, "top_p": 0.8, "length_penalty": 1.0},
                **{"speaks": True, "omni_mode": False, "enable_thinking": False, "use_tts_template": False},
                **{"max_slice_nums": None, "use_image_id": None},
            },
        ),
        (
            {"generation": DRAWN, "image": IMAGE, "tts": {"enabled": False}, **TOLD_SO},
            {"sampling": DRAWN, "speaks": False, **TOLD_SO, **IMAGE},
        ),
    ],
    ids=["defaults", "everything"],
)
async def test_settings_reach_the_worker(chatter: Stack, given: Event, expected: Event) -> None:
    async with chatter.client(CHAT) as client:
        await client.send(request(TELLS, **given))
        events, _ = await client.end()

    _, turn = told(events[-1]["text"])
    assert {name: turn[name] for name in expected} == expected
    assert turn["messages"][1] == {"role": "user", "parts": ["Name a prime."]}
    assert "unsupported_fields" not in events[-1]


async def test_parts(chatter: Stack) -> None:
    message = {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image", "data": pictured()},
            {"type": "audio", "data": f32(0.5, rate=8_000), "sample_rate": 8_000},
            {"type": "text", "text": "Well?"},
        ],
    }
    async with chatter.client(CHAT) as client:
        await client.send(
            {"messages": [scripted(TELLS), message, {"role": "assistant", "content": "Hm."}, USER]}
        )
        events, _ = await client.end()

    _, turn = told(events[-1]["text"])
    _, asked, answered, last = turn["messages"]
    first, picture, clip, second = asked["parts"]
    assert (first, second) == ("What is this?", "Well?")
    assert picture == {"picture": Text("[0-9a-f]{8}")}
    assert clip["clip"]["samples"] == 8_000
    assert clip["clip"]["audio"][1:] == [pytest.approx(0.1, abs=0.01)] * 3
    assert answered == {"role": "assistant", "parts": ["Hm."]}
    assert last["role"] == "user"


async def test_reference_voice_as_the_page_sends_it(chatter: Stack) -> None:
    """The reference in the system message, as float32 at 16 kHz, and again for speech."""
    voice = f32(1.0)
    system = {
        "role": "system",
        "content": [
            {"type": "text", "text": "Mimic the voice from the audio sample."},
            {"type": "audio", "data": voice},
            {"type": "text", "text": "You are a helpful assistant."},
        ],
    }
    tts = {"enabled": True, "mode": "audio_assistant", "ref_audio_data": voice}
    asked = {"messages": [system, {"role": "user", "content": "Hello!"}], "tts": tts}
    async with chatter.client(CHAT) as client:
        await client.send(asked)
        events, code = await client.end()

    assert events[-1]["unsupported_fields"] == ["tts.ref_audio_data", "tts.mode"]
    assert code == 1000


async def test_message_of_32_mib(chatter: Stack) -> None:
    clip = {"role": "user", "content": [{"type": "audio", "data": f32(290)}]}
    async with chatter.client(CHAT) as client:
        await client.send({"messages": [scripted(TELLS), clip]})
        events, _ = await client.end()

    _, turn = told(events[-1]["text"])
    assert turn["messages"][1]["parts"][0]["clip"]["samples"] == 290 * 16_000


async def test_events_in_their_order(chatter: Stack) -> None:
    async with chatter.client(REALTIME) as client:
        assert await client.next() == {"type": "session.queue_done"}
        assert await client.ask({"type": "session.init", "payload": {}}) == created()
        await client.send(append(speak("Sev", "en.", seconds=1.0), input_id="in-1"))
        events = await client.until("response.done")
        assert all(event == delta(event["kind"], Text(".+"), "in-1") for event in events[:-1])
        assert "".join(event.get("text", "") for event in events[:-1]) == "Seven."
        assert sum(seconds_of(event["audio"]) for event in events if event.get("kind") == "audio") == 1.0
        assert events[-1] == response_done("Seven.", input_id="in-1")
        assert len({event["response_id"] for event in events}) == 1
        assert events[-1]["usage"]["input_tokens"] == INPUT_TOKENS
        await client.send(CLOSE)
        assert (await client.end()) == ([With(type="session.closed", reason="user_stop", usage=With())], 1000)


async def test_metrics(chatter: Stack) -> None:
    async with chatter.client(REALTIME) as client:
        await begin(client)
        await client.send(append(SAYS))
        event = (await client.until("response.done"))[-1]

    assert event["metrics"] == {
        "kv_cache_length": 22,
        "n_past_max": 4096,
        "prefill_ms": 1.0,
        "generate_ms": 2.0,
        "wall_clock_ms": Number(),
        "n_tokens": 2,
        "n_tts_tokens": 0,
    }
