"""Whole conversations on `/v1/realtime` with the checkpoint of the package, as its users hold them."""

import base64

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conformance.support import recordings
from tests.conformance.support.client import Client, Event, kind, kinds
from tests.conformance.support.match import RESPONSE_ID, SESSION_ID, With
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import CLOSE, G2, G3, RATE, Words, both, samples_of
from tests.e2e.conftest import Recording
from tests.support.drawing import jpeg

GREEDY = {"decode_mode": "greedy"}
SILENCE_S = 7
TRIES = 5
"""Of a message that has to come before an answer is computed."""


def recording(name: str) -> Recording:
    """A spoken question, and the reply that the model was taught."""
    return Recording(name, recordings.reply_to(name), recordings.recording(name))


def as_base64(pcm: NDArray[np.float32]) -> str:
    return base64.b64encode(pcm.astype("<f4").tobytes()).decode()


async def begin(client: Client, words: Words, **fields: object) -> Event:
    client.ignored = {"session.queued", "session.queue_update"}
    await client.expect("session.queue_done")
    event = words.init(**{words.config: GREEDY, **fields})
    event[words.opener_field][words.prompt] = "You are a helpful assistant."
    await client.send(event)
    return await client.expect("session.created")


async def answer(client: Client, words: Words, pcm: NDArray[np.float32], **fields: object) -> list[Event]:
    """Lockstep: sends one second, and waits for everything that it causes, up to `listen` or `audio`.

    On a busy machine an answer may come so late that silence is fed behind the burst: it is read over.
    """
    await client.send(words.append(audio=as_base64(pcm), **fields))
    events = [await client.next()]
    while is_injected(events[-1]) or (
        events[-1]["type"] == "response.output.delta" and events[-1]["kind"] not in ("listen", "audio")
    ):
        events.append(await client.next())
    return events


async def goodbye(client: Client) -> None:
    """Closes in order.

    A turn's trailing listen answered this client's next append too, so that the answer to its last one may
    still be on its way: it arrives before the end or not at all.
    """
    await client.send(CLOSE)
    events, code = await client.end()
    assert kinds(events) in (["session.closed"], ["listen", "session.closed"])
    assert code == 1000


def is_injected(event: Event) -> bool:
    return bool((event.get("metrics") or {}).get("injected_silence"))


def text_of(events: list[Event]) -> str:
    return " ".join("".join(event.get("text", "") for event in events).split())


async def test_lockstep_client_holds_a_whole_conversation(shipped: Stack) -> None:
    """Each second is answered before the next is sent; the reply is the one that the model was taught."""
    async with shipped.client() as client:
        created = await begin(client, G3)
        spoken = recording("abilities")
        for pcm in spoken.units(SILENCE_S):
            assert pcm.size == RATE
            await answer(client, G3, pcm)
        await goodbye(client)
        deltas = [event for event in client.events if event["type"] == "response.output.delta"]
        assert text_of(deltas) == spoken.reply
        answered = [delta["chunk_index"] for delta in deltas if "chunk_index" in delta]
        assert answered == list(range(len(answered)))
        # A turn's trailing listen answers this client's next append too, so that its last one stays open.
        assert len(answered) >= len(spoken.units(SILENCE_S)) - 1
        assert all(delta["session_id"] == created["session_id"] == SESSION_ID for delta in deltas)
        response = [delta for delta in deltas if "response_id" in delta]
        assert {delta["response_id"] for delta in response} == {response[0]["response_id"]}
        assert response[0]["response_id"] == RESPONSE_ID
        assert response[-1] == With(kind="listen", reason="turn_end")
        sizes = [samples_of(delta).size for delta in deltas if delta["kind"] == "audio"]
        assert sizes[1:-1] == [24_000] * (len(sizes) - 2)
        assert 0 < sizes[-1] <= 24_000
        assert any(np.abs(samples_of(delta)).max() > 0.01 for delta in deltas if delta["kind"] == "audio")


async def test_conversation_in_the_earlier_dialect(shipped: Stack) -> None:
    """Deltas inside the turn hold exactly 24,000 samples."""
    async with shipped.client() as client:
        await begin(client, G2)
        spoken = recording("joke")
        events = [event for pcm in spoken.units(SILENCE_S) for event in await answer(client, G2, pcm)]
        assert sum(not is_injected(event) for event in events) == len(spoken.units(SILENCE_S))
        deltas = [event for event in events if event["type"] == "response.output_audio.delta"]
        assert text_of(deltas) == spoken.reply
        assert [delta["end_of_turn"] for delta in deltas] == [False] * (len(deltas) - 1) + [True]
        sizes = [samples_of(delta).size for delta in deltas]
        assert sizes[1:-1] == [24_000] * (len(sizes) - 2)
        assert max(sizes) <= 24_000
        assert len({delta["response_id"] for delta in deltas}) == 1
        await client.send(CLOSE)
        assert (await client.end())[0] == [With(type="session.closed", reason="stopped")]


async def test_client_that_sends_one_utterance_and_waits(shipped: Stack) -> None:
    """Split, silence, trailing listen."""
    async with shipped.client() as client:
        client.ignored = {"session.queued", "session.queue_update"}
        await client.expect("session.queue_done")
        await client.send({"type": "session.init", "payload": {}})
        await client.expect("session.created")
        spoken = recording("abilities")
        await client.send(G3.append(audio=as_base64(spoken.pcm), input_id="utterance"))
        events = await client.until("audio")
        events += await client.until("listen")
        assert all(event["input_id"] == "utterance" for event in events)
        assert text_of(events)
        assert events[-1] == With(kind="listen", reason="turn_end")
        # Nothing is fed behind the answer.
        await client.send({"type": "nonsense"})
        await client.expect("error:unknown_event")


@both
async def test_force_listen_interrupts_a_long_answer(shipped: Stack, words: Words) -> None:
    async with shipped.client() as client:
        await begin(client, words)
        units = recording("joke").units(SILENCE_S)
        heard = 0
        while heard < 2:
            told = await answer(client, words, units.pop(0))
            heard += any("text" in event for event in told)
        interrupted = client.events[-1]["response_id"]
        told = await answer(client, words, units.pop(0), force_listen=True)
        # On a busy machine it is a unit of silence that is cut off, and closes the response.
        assert kinds([event for event in told if not is_injected(event)]) == [words.listen]
        listens = [event for event in told if kind(event) == words.listen]
        assert [event["response_id"] for event in listens if "response_id" in event] == [interrupted]
        assert len(text_of(client.events)) < len(recording("joke").reply)
        after = await answer(client, words, np.zeros(RATE, np.float32))
        assert all(event.get("response_id") != interrupted for event in after)


@both
@pytest.mark.sample("G3")
async def test_force_listen_stops_an_answer_before_its_first_word(shipped: Stack, words: Words) -> None:
    spoken = recording("joke").units(SILENCE_S)
    async with shipped.client() as client:
        await begin(client, words)
        silent = 0
        while not any("text" in event for event in await answer(client, words, spoken[silent])):
            silent += 1
    for _ in range(TRIES):
        async with shipped.client() as client:
            await begin(client, words)
            for pcm in spoken[:silent]:
                await answer(client, words, pcm)
            would_speak = words.append(audio=as_base64(spoken[silent]), input_id="would speak")
            quiet = as_base64(np.zeros(RATE, np.float32))
            await client.send(would_speak, words.append(audio=quiet, input_id="stop", force_listen=True))
            first = await client.next()
            if kind(first) != words.listen:
                continue  # the answer was computed before the second message came
            events = [first, await client.next()]
            assert kinds(events) == [words.listen] * 2
            assert [event["input_id"] for event in events] == ["would speak", "stop"]
            assert not any("response_id" in event for event in events)
            next_question = recording("abilities")
            after = [await answer(client, words, pcm) for pcm in next_question.units(SILENCE_S)]
            assert text_of([event for events in after for event in events]) == next_question.reply
            return
    pytest.fail(f"{TRIES} answers were computed before the next message came")


async def test_two_dialects_at_once_hear_themselves_only(shipped: Stack) -> None:
    counting, wellbeing = recording("counting"), recording("how_are_you")
    async with shipped.client() as current, shipped.client() as earlier:
        await begin(current, G3)
        await begin(earlier, G2)
        for one, two in zip(counting.units(SILENCE_S), wellbeing.units(SILENCE_S), strict=False):
            await answer(current, G3, one)
            await answer(earlier, G2, two)
        assert text_of(current.events) == counting.reply
        assert text_of(earlier.events) == wellbeing.reply


# ------------------------------------------------------------------------------------------------ video


@both
@pytest.mark.parametrize(("colour", "shape"), [("red", "circle"), ("blue", "square")])
@pytest.mark.sample("red-circle-G2", "blue-square-G3")
async def test_video_conversation(shipped: Stack, words: Words, colour: str, shape: str) -> None:
    frames = {"video_frames": [base64.b64encode(jpeg(colour, shape, (640, 480))).decode()]}
    async with shipped.client("/v1/realtime?mode=video") as client:
        await begin(client, words)
        events: list[Event] = []
        for n, pcm in enumerate(recording("vision").units(SILENCE_S)):
            told = await answer(client, words, pcm, **(frames if n % 2 == 0 else {}))
            assert not any(event["type"] == "error" for event in told)
            events += told
        assert text_of(events) == f"i see a {colour} {shape}"
        firsts = [event for event in events if words is G2 or "chunk_index" in event]
        answered = [event["metrics"] for event in firsts if not is_injected(event)]
        slices = [metrics.get("vision_slices", 0) for metrics in answered]
        assert slices == [1, 0] * (len(slices) // 2) + [1] * (len(slices) % 2)
        await goodbye(client)


@both
async def test_default_voice_may_be_sent_back_as_the_reference(shipped: Stack, words: Words) -> None:
    status, voice = await shipped.request("/api/default_ref_audio")
    assert (status, voice["sample_rate"]) == (200, RATE)
    assert len(base64.b64decode(voice["base64"])) == 4 * voice["samples"]

    async with shipped.client() as client:
        await begin(client, words, ref_audio_base64=voice["base64"])
        await client.send(words.append(audio=as_base64(np.zeros(RATE, np.float32))))
        assert (await client.next())["type"] != "error"
        await client.send(CLOSE)
        assert (await client.end())[1] == 1000
