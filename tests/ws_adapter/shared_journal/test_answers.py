"""Answers whose adapter is killed in the middle: they go on at another adapter, each word once."""

from pathlib import Path

import pytest

from tests.conformance.support.client import kind
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import write
from tests.ws_adapter.resume.test_dialects import TALKS, WORDS, text_of
from tests.ws_adapter.shared_journal.test_takeover import adapters, coming_back, end, resumed
from tests.ws_adapter.support import realtime_ga_conversation as ga

SCRIPTED = ("--prompted", "--modes", "chat,audio")
TRANSCRIBES = ("--prompted", "--modes", "transcribe,audio")


@pytest.mark.parametrize("name", TALKS)
async def test_answer_goes_on_behind_the_last_word(
    name: str, redis_server: RedisServer, folder: Path
) -> None:
    talk = TALKS[name]
    transcribes = name.startswith("transcription")
    worker = TRANSCRIBES if transcribes else SCRIPTED
    async with adapters(redis_server, folder, worker=worker) as (owner, other):
        for _ in range(2 * transcribes):
            owner.worker.next(write(*WORDS, hold="generate"), key=name)
        async with owner.client(talk.path) as client:
            await client.send(*talk.sends)
            token = (await client.until(talk.offers))[-1]["resume"]["token"]
            await client.send(*talk.sends_later)
            while "".join(map(text_of, client.events)) != "".join(WORDS):
                await client.next()
            events = list(client.events)
            await end(owner)
        async with coming_back(other, resumed(talk.path, token, len(events))) as (client, told):
            assert told["type"] == "session.resumed"
            owner.worker.release(name, "generate", 1)
            await client.until(talk.ends)
            events += client.events[1:]
    assert "".join(map(text_of, events)) == "".join(WORDS)
    assert [kind(event) for event in events].count(talk.ends) == 1
    assert not any(kind(event).startswith("error") for event in events)
    if name == "realtime":
        assert events[-1]["response"]["status"] == "completed"
        ids = [event["event_id"] for event in events]
        assert len(ids) == len(set(ids))


async def test_conversation_of_realtime_goes_on_between_two_answers(
    redis_server: RedisServer, folder: Path
) -> None:
    """Also when nobody holds a slot for it, and when the next adapter dies too."""
    path = "/v1/realtime?model=scripted"
    async with adapters(
        redis_server, folder, count=3, worker=("--modes", "chat", "--script", "reply")
    ) as stacks:
        first, *others = stacks
        async with first.client(path) as client:
            token = (await client.until("session.created"))[-1]["resume"]["token"]
            await client.send(
                ga.update(output_modalities=["text"]), ga.message("One"), {"type": "response.create"}
            )
            await client.until("response.done")
            seen = len(client.events)
            await end(first)
        for stack in others:
            async with coming_back(stack, resumed(path, token, seen)) as (client, told):
                assert told["type"] == "session.resumed"
                token = told["resume"]["token"]
                await client.send(ga.message("Another"), {"type": "response.create"})
                done = (await client.until("response.done"))[-1]
                assert done["response"]["status"] == "completed"
                before = [event for event in client.events if event["type"] == "conversation.item.added"]
                assert before[0]["previous_item_id"] is not None
                seen += len(client.events) - 1
                await end(stack)


async def test_turn_of_the_models_own_goes_on(redis_server: RedisServer, folder: Path) -> None:
    path = "/v1/realtime?model=scripted"
    async with adapters(redis_server, folder) as (owner, other):
        async with owner.client(path) as client:
            token = (await client.until("session.created"))[-1]["resume"]["token"]
            await client.send(ga.update(**ga.SEMANTIC))
            for _ in range(4):
                await client.send(ga.append(1.0, 0.0))
            await client.until("response.output_audio_transcript.delta")
            events = list(client.events)
            await end(owner)
        async with coming_back(other, resumed(path, token, len(events))) as (client, told):
            assert told["type"] == "session.resumed"
            await client.send(*[ga.append(1.0, 0.0)] * 3)
            await client.until("response.done")
            events += client.events[1:]
    words = "".join(
        event["delta"] for event in events if event["type"] == "response.output_audio_transcript.delta"
    )
    assert words == "Hello there how are you?"
    assert events[-1]["response"]["output"][0]["content"][0]["transcript"] == words
    ids = [event["event_id"] for event in events]
    assert len(ids) == len(set(ids))
