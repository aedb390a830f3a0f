"""A row for each state of transcription; the whole table is in `tests/ws_adapter/protocol/transcription`."""

import json
import time
from dataclasses import replace

import pytest

from tests.conformance.support.stack import Stack
from tests.conformance.support.transcription_words import (
    COMMIT,
    CREATED,
    FINAL,
    PATH,
    RATE,
    TARGETS,
    TELLS,
    UPDATE,
    append,
    begin,
    delta,
    done,
    error,
    levels,
    nothing,
    opened,
    samples,
    told,
)
from tests.support.scripted_engine import fails, hang, listen, write

GO = write(" go")


@pytest.mark.parametrize("target", TARGETS)
async def test_events(transcriber: Stack, target: str) -> None:
    """Their keys are in order, and `null` is written out."""
    transcriber.worker.next(write(" good"), write(" morning", tokens=2), listen())
    async with transcriber.client(target) as client:
        created = await client.next()
        # Where a client may also be one of OpenAI's protocol, its fields come with ours.
        others = [created.pop(name) for name in ("event_id", "session") if "intent" in target]
        assert created == CREATED
        assert len(others) == 2 * ("intent" in target)
        assert abs(created["created"] - time.time()) < 60
        await client.send(UPDATE, COMMIT, append())
        assert await client.next() == delta(" good")
        await client.send(append())
        assert await client.next() == delta(" morning")
        await client.send(FINAL)
        assert await client.next() == done(" good morning", completion=4)
    assert [list(event) for event in (client.events[0], client.events[1], client.events[-1])] == [
        ["type", "id", "created"],
        ["type", "delta"],
        ["type", "text", "usage"],
    ]
    assert json.dumps(client.events[-1]["usage"]) == (
        '{"prompt_tokens": 10, "total_tokens": 14, "completion_tokens": 4, '
        '"prompt_tokens_details": null, "completion_tokens_details": null}'
    )


async def test_no_model_keeps_audio_and_refuses_commits(transcriber: Stack) -> None:
    transcriber.worker.next(TELLS, repeat=True)
    async with transcriber.client(PATH) as client, transcriber.client(PATH) as other:
        assert await client.next() == CREATED
        assert (await other.next())["id"] != client.events[0]["id"]
        await client.send(append(level=0.1))
        for commit in (COMMIT, FINAL):
            refused = await client.ask(commit)
            assert refused == error("model_not_validated", refused["error"])
            assert "session.update" in refused["error"]
        await client.send(append(level=0.2), {**UPDATE, "language": "en", "session": {"model": "y"}})
        await nothing(client)
        await client.send(COMMIT, append(level=0.3), FINAL)
        units = await told(client)
    assert levels(units) == [0.1, 0.2, 0.3]
    assert samples(units) == 3 * RATE
    assert [unit["begins"] for unit in units] == [True] + [False] * (len(units) - 1)
    assert [unit["ends"] for unit in units] == [False] * (len(units) - 1) + [True]


async def test_open_keeps_audio_while_it_waits_silently_for_a_slot(narrow_transcriber: Stack) -> None:
    stack = narrow_transcriber
    stack.worker.next(GO)
    stack.worker.next(TELLS, repeat=True)
    async with stack.client(PATH) as holder, stack.client(PATH) as client:
        await begin(holder)
        await opened(client, append(level=0.1), COMMIT, append(level=0.2))
        await stack.until_queue(1)
        (item,) = (await stack.request("/api/queue"))[1]["items"]
        assert item["request_type"] == "transcription"
        await client.send(append(level=0.3), COMMIT, FINAL)
        await nothing(client)
        await holder.send(FINAL)
        assert await holder.next() == done(" go")
        units = await told(client)
    assert levels(units) == [0.1, 0.2, 0.3]


async def test_commits_sent_while_finishing_are_kept_in_order(transcriber: Stack) -> None:
    transcriber.worker.next(GO, hang("generate"), *[TELLS] * 4, key="T-ahead")
    async with transcriber.client(PATH) as client:
        await begin(client)
        await client.send(FINAL)
        assert await client.ask({**UPDATE, "model": "whisper-9"}) == error("model_not_found")
        await client.send(append(level=0.2), COMMIT, append(level=0.3), FINAL, FINAL, append(level=0.4))
        await nothing(client)
        transcriber.worker.release("T-ahead", "generate", 2)
        assert await client.next() == done(" go")
        await told(client)
        await nothing(client)
        await client.send(FINAL)
        units = await told(client)
    assert levels(units[2:]) == [0.2, 0.3, 0.4]
    assert [unit["begins"] for unit in units].count(True) == 3
    assert [unit["ends"] for unit in units].count(True) == 3


async def test_skipping_discards_audio_until_the_next_utterance(transcriber: Stack) -> None:
    for skipped in ([append(level=0.2), FINAL], [append(level=0.2), COMMIT]):
        transcriber.worker.next(GO, fails(), *[TELLS] * 3)
        async with transcriber.client(PATH) as client:
            await begin(client)
            await client.send(append())
            assert await client.next() == error("processing_error")
            await client.send(*skipped)
            await nothing(client)
            await client.send(append(level=0.3), FINAL)
            assert levels((await told(client))[2:]) == [0.3]


async def test_failure_after_final_commit_keeps_later_commits(transcriber: Stack) -> None:
    failing = replace(fails(), hold="generate")
    transcriber.worker.next(GO, failing, write(" two"), write(" three"), key="T-late")
    async with transcriber.client(PATH) as client:
        await begin(client)
        await client.send(FINAL, append(), FINAL, COMMIT, append(), FINAL)
        await nothing(client)
        transcriber.worker.release("T-late", "generate", 2)
        assert await client.take(5) == [
            error("processing_error"),
            delta(" two"),
            done(" two", completion=1),
            delta(" three"),
            done(" three", completion=1),
        ]


async def test_failure_harms_no_other_socket(transcriber: Stack) -> None:
    transcriber.worker.next(GO, fails(), write(" two"))
    async with transcriber.client(PATH) as client, transcriber.client(PATH) as other:
        await begin(client)
        transcriber.worker.next(GO, listen(), listen())
        await begin(other)
        await client.send(append(), append(), FINAL)
        assert await client.next() == error("processing_error")
        await nothing(client)
        await client.send(append(), FINAL)
        assert (await client.until("transcription.done"))[-1]["text"] in ("", " two")
        await other.send(append(), FINAL)
        assert await other.next() == done(" go")


async def test_idle_session_yields_its_slot_to_new_session(narrow_transcriber: Stack) -> None:
    """Transcription and duplex sessions share one queue."""
    stack = narrow_transcriber
    stack.worker.next(GO)
    stack.worker.next(write(" mine"))
    async with stack.client("/ws/duplex/adx_1") as talker, stack.client(PATH) as silent:
        await talker.expect("queue_done")
        await opened(silent, append(), FINAL)
        await stack.until_queue(1)
        await talker.send({"type": "stop"})
        assert await silent.take(2) == [delta(" go"), done(" go", completion=1)]
        async with stack.client(PATH) as client:
            await opened(client, append(), FINAL)
            assert await client.take(2) == [delta(" mine"), done(" mine", completion=1)]


async def test_client_may_just_leave(transcriber: Stack) -> None:
    async with transcriber.client(PATH) as client:
        await opened(client)
        assert await client.ask({"type": "session.close"}) == error("unknown_event")
        await client.socket.close()
        assert await client.end() == ([], 1000)
