"""Sections 8.1 and 8.2: every event, every cell of the state table and the rules under it."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance.support.client import Client, Event
from tests.conformance.support.stack import Stack
from tests.conformance.support.transcription_words import (
    COMMIT,
    CREATED,
    EMPTY,
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
    samples,
    told,
)
from tests.support.scripted_engine import Play, fails, hang, listen, write

GO = write(" go")


async def opened(client: Client, *events: Event) -> None:
    """Through to a chosen model, and whatever else."""
    assert await client.next() == CREATED
    await client.send(UPDATE, *events)


# ------------------------------------------------------------------------------------------------- events


@pytest.mark.parametrize("target", TARGETS)
async def test_events(transcriber: Stack, target: str) -> None:
    """8.1: each event with its keys in order, `null` written out; `session.created` first."""
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


async def test_ids_differ(transcriber: Stack) -> None:
    """8.1: `id` is `sess-` and 32 hex, one for each socket."""
    async with transcriber.client(PATH) as one, transcriber.client(PATH) as other:
        assert (await one.next())["id"] != (await other.next())["id"]


async def test_everything_else_in_an_update_is_ignored(transcriber: Stack) -> None:
    """8.1 `session.update`: success is silent. `language`, `prompt`, all others ignored."""
    async with transcriber.client(PATH) as client:
        assert await client.next() == CREATED
        await client.send({**UPDATE, "language": "en", "prompt": "x", "session": {"model": "y"}})
        await nothing(client)
        await client.send(COMMIT, FINAL)
        assert await client.next() == EMPTY


@pytest.mark.parametrize("final", [True, 1, "true", "TRUE", "Yes", "on", "1"])
async def test_final_in_every_spelling(transcriber: Stack, final: Any) -> None:
    """8.1 `final`: also accepted 1 and the words, any case; the others are those of a plain commit."""
    async with transcriber.client(PATH) as client:
        await opened(client, COMMIT)
        for plain in (False, 0, "false", "No", "OFF", "0"):
            await client.send({**COMMIT, "final": plain})
        await nothing(client)
        await client.send({**COMMIT, "final": final})
        assert await client.next() == EMPTY


# --------------------------------------------------------------------------------- NO_MODEL, then READY


async def test_no_model(transcriber: Stack) -> None:
    """8.2 NO_MODEL: append kept; commit and commit final `model_not_validated`; update: READY."""
    transcriber.worker.next(TELLS, repeat=True)
    async with transcriber.client(PATH) as client:
        assert await client.next() == CREATED
        await client.send(append(level=0.1))
        assert await client.ask(COMMIT) == error("model_not_validated")
        assert await client.ask(FINAL) == error("model_not_validated")
        await client.send(append(level=0.2), UPDATE)
        await nothing(client)
        await client.send(COMMIT, append(level=0.3), FINAL)
        units = await told(client)
    assert levels(units) == [0.1, 0.2, 0.3]
    assert samples(units) == 3 * RATE


async def test_ready_append_is_kept_and_commit_opens(transcriber: Stack) -> None:
    """8.2 READY: append kept for the next utterance; commit: OPEN, kept audio first."""
    transcriber.worker.next(TELLS, repeat=True)
    async with transcriber.client(PATH) as client:
        await opened(client, append(level=0.1), COMMIT, append(level=0.2), FINAL)
        units = await told(client)
    assert levels(units) == [0.1, 0.2]
    assert [unit["begins"] for unit in units] == [True] + [False] * (len(units) - 1)
    assert [unit["ends"] for unit in units] == [False] * (len(units) - 1) + [True]


async def test_ready_final_with_kept_audio(transcriber: Stack) -> None:
    """8.2 READY: commit final with kept audio: OPEN then FINISHING, one `done`."""
    transcriber.worker.next(TELLS, repeat=True)
    async with transcriber.client(PATH) as client:
        await opened(client, append(), FINAL)
        units = await told(client)
        await nothing(client)
    assert samples(units) == RATE


async def test_ready_stray_final(transcriber: Stack) -> None:
    """8.2 READY: commit final without kept audio: ignored, no reply, no after-effect."""
    transcriber.worker.next(GO, listen(), listen())
    async with transcriber.client(PATH) as client:
        await opened(client, FINAL, FINAL)
        await nothing(client)
        await client.send(COMMIT, append())
        assert await client.next() == delta(" go")
        await nothing(client)
        await client.send(FINAL)
        assert await client.next() == done(" go")


async def test_ready_update(transcriber: Stack) -> None:
    """8.2 READY and OPEN: session.update: new model, the next utterance's; a failed one revokes nothing."""
    async with transcriber.client(PATH) as client:
        await opened(client)
        assert await client.ask({**UPDATE, "model": "whisper-9"}) == error("model_not_found")
        await client.send(COMMIT)
        assert await client.ask({"type": "session.update"}) == error("invalid_event")
        await client.send(UPDATE, FINAL)
        assert await client.next() == EMPTY


# ------------------------------------------------------------------------------------------------- OPEN


async def test_open(transcriber: Stack) -> None:
    """8.2 OPEN: append fed; commit ignored, no reply; commit final: FINISHING, then one `done`."""
    transcriber.worker.next(GO, write(" on"), listen())
    async with transcriber.client(PATH) as client:
        await begin(client)
        await client.send(COMMIT, COMMIT)
        await nothing(client)
        await client.send(append())
        assert await client.next() == delta(" on")
        await client.send(FINAL)
        assert await client.next() == done(" go on", completion=3)
        await client.send(FINAL)
        await nothing(client)


async def test_open_while_it_waits_for_a_slot(narrow_transcriber: Stack) -> None:
    """8.2 OPEN (waiting for a slot): silently through the FIFO, no queue events; audio is kept meanwhile."""
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


async def test_empty_utterance_leaves_the_queue(narrow_transcriber: Stack) -> None:
    """8.2: empty utterance: `done` with `""` and zero counts, without the model; also while it waits."""
    stack = narrow_transcriber
    stack.worker.next(GO)
    async with stack.client(PATH) as holder, stack.client(PATH) as client:
        await begin(holder)
        await opened(client, COMMIT)
        await stack.until_queue(1)
        assert await client.ask(FINAL) == EMPTY
        await stack.until_queue(0)


# -------------------------------------------------------------------------------------------- FINISHING


async def finishing(client: Client, stack: Stack, key: str, *plays: Play) -> None:
    """An utterance whose last unit hangs until it is released as `key`."""
    stack.worker.next(GO, hang("generate"), *plays, key=key)
    await begin(client)
    await client.send(FINAL)


async def test_finishing_append_and_commit(transcriber: Stack) -> None:
    """8.2 FINISHING: append kept for the next utterance; commit remembered: OPEN right after `done`."""
    async with transcriber.client(PATH) as client:
        await finishing(client, transcriber, "T-remembered", TELLS, TELLS, TELLS)
        await client.send(append(level=0.2), COMMIT, append(level=0.3))
        await nothing(client)
        transcriber.worker.release("T-remembered", "generate", 2)
        assert await client.next() == done(" go")
        await client.send(FINAL)
        units = await told(client)
    assert levels(units[2:]) == [0.2, 0.3]
    assert units[2]["begins"]


async def test_finishing_final_ends_the_remembered_utterance(transcriber: Stack) -> None:
    """8.2 FINISHING: commit final ends the remembered utterance."""
    async with transcriber.client(PATH) as client:
        await finishing(client, transcriber, "T-ended", write(" two"))
        await client.send(COMMIT, append(), FINAL)
        await nothing(client)
        transcriber.worker.release("T-ended", "generate", 2)
        assert await client.take(3) == [done(" go"), delta(" two"), done(" two", completion=1)]


async def test_finishing_final_without_a_commit(transcriber: Stack) -> None:
    """8.2 FINISHING: commit final, else as READY: kept audio is an utterance, without any it is ignored."""
    async with transcriber.client(PATH) as client:
        await finishing(client, transcriber, "T-as-ready", write(" two"))
        await client.send(FINAL, append(), FINAL, FINAL)
        await nothing(client)
        transcriber.worker.release("T-as-ready", "generate", 2)
        assert await client.take(3) == [done(" go"), delta(" two"), done(" two", completion=1)]
        await nothing(client)


async def test_finishing_update(transcriber: Stack) -> None:
    """8.2 FINISHING: session.update: next utterance's model; a failed one leaves the one before."""
    async with transcriber.client(PATH) as client:
        await finishing(client, transcriber, "T-update", write(" two"))
        assert await client.ask({**UPDATE, "model": "whisper-9"}) == error("model_not_found")
        await client.send(UPDATE, append(), FINAL)
        transcriber.worker.release("T-update", "generate", 2)
        assert await client.take(3) == [done(" go"), delta(" two"), done(" two", completion=1)]


async def test_utterances_ahead_queue_in_order(transcriber: Stack) -> None:
    """8.2: utterances that arrive ahead queue in order; each starts from a clean context."""
    transcriber.worker.next(TELLS, repeat=True)
    async with transcriber.client(PATH) as client:
        await opened(client)
        for level in (0.1, 0.2, 0.3):
            await client.send(COMMIT, append(level=level), FINAL)
        for _ in range(3):
            units = await told(client)
    assert levels(units) == [0.1, 0.2, 0.3]
    assert [unit["begins"] for unit in units].count(True) == 3
    assert [unit["ends"] for unit in units].count(True) == 3


# --------------------------------------------------------------------------------------------- SKIPPING


async def skipping(client: Client, stack: Stack, *plays: Play) -> None:
    """After a failed utterance whose final commit has not come."""
    stack.worker.next(GO, fails(), *plays)
    await begin(client)
    await client.send(append())
    assert await client.next() == error("processing_error")


async def test_skipping_append_and_final(transcriber: Stack) -> None:
    """8.2 SKIPPING: append discarded; commit final: READY, no reply."""
    async with transcriber.client(PATH) as client:
        await skipping(client, transcriber, TELLS)
        await client.send(append(level=0.2), FINAL)
        await nothing(client)
        await client.send(append(level=0.3), FINAL)
        units = await told(client)
    assert levels(units[2:]) == [0.3]


async def test_skipping_commit(transcriber: Stack) -> None:
    """8.2 SKIPPING: commit: OPEN, without what was discarded."""
    async with transcriber.client(PATH) as client:
        await skipping(client, transcriber, TELLS, TELLS, TELLS)
        await client.send(append(level=0.2), COMMIT, append(level=0.3), FINAL)
        units = await told(client)
    assert levels(units[2:]) == [0.3]


async def test_skipping_update(transcriber: Stack) -> None:
    """8.2 SKIPPING: session.update: next utterance's model."""
    async with transcriber.client(PATH) as client:
        await skipping(client, transcriber, write(" two"))
        await client.send(UPDATE)
        assert await client.ask({**UPDATE, "model": "x"}) == error("model_not_found")
        await client.send(FINAL, append(), FINAL)
        assert await client.take(2) == [delta(" two"), done(" two", completion=1)]


async def test_failure_after_the_final_commit(transcriber: Stack) -> None:
    """8.2: READY if its final commit has already come; kept audio and remembered commits stay."""
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


# ------------------------------------------------------------------------------------------------ rules


async def test_one_outcome_for_each_utterance(transcriber: Stack) -> None:
    """8.2: exactly one `done` per utterance that did not fail; a failed one has one `error` and no `done`.

    Neither closes the socket, nor harms other sockets.
    """
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


async def test_utterances_are_unlimited(transcriber: Stack) -> None:
    """8.2: utterances per socket are unlimited, on one slot where nobody waits."""
    transcriber.worker.next(write(" again"), repeat=True)
    async with transcriber.client(PATH) as client:
        await opened(client)
        for _ in range(30):
            await client.send(COMMIT, append(), FINAL)
            assert " again" in (await client.until("transcription.done"))[-1]["text"]


async def test_who_has_more_to_say_lets_others_go_first(narrow_transcriber: Stack) -> None:
    """8.2: the slot is not kept at all while others wait."""
    stack = narrow_transcriber
    stack.worker.next(GO)
    stack.worker.next(write(" mine"))
    stack.worker.next(write(" later"))
    async with stack.client(PATH) as eager, stack.client(PATH) as patient:
        await begin(eager)
        await opened(patient, append(), FINAL)
        await stack.until_queue(1)
        await eager.send(FINAL, COMMIT, append(), FINAL)
        assert await eager.next() == done(" go")
        assert await patient.take(2) == [delta(" mine"), done(" mine", completion=1)]
        assert await eager.take(2) == [delta(" later"), done(" later", completion=1)]


async def test_idle_slot_is_given_up_when_somebody_comes(narrow_transcriber: Stack) -> None:
    """8.2: after `done` it is kept for the next utterance, and not at all while others wait."""
    stack = narrow_transcriber
    stack.worker.next(GO)
    stack.worker.next(write(" mine"))
    async with stack.client(PATH) as silent, stack.client(PATH) as client:
        await begin(silent)
        await silent.send(FINAL)
        assert await silent.next() == done(" go")
        await opened(client, append(), FINAL)
        assert await client.take(2) == [delta(" mine"), done(" mine", completion=1)]


async def test_a_talker_can_follow_an_idle_transcriber(narrow_transcriber: Stack) -> None:
    """Section 9: one FIFO over all kinds."""
    stack = narrow_transcriber
    stack.worker.next(GO)
    async with stack.client(PATH) as silent, stack.client("/ws/duplex/adx_1") as talker:
        await talker.expect("queue_done")
        await opened(silent, append(), FINAL)
        await stack.until_queue(1)
        await talker.send({"type": "stop"})
        assert await silent.take(2) == [delta(" go"), done(" go", completion=1)]


async def test_buffer_is_bounded(transcriber: Stack) -> None:
    """8.2: waiting audio per socket is bounded at 30 min; each append beyond it: `buffer_full`."""
    minutes = append(5 * 60 * RATE)
    async with transcriber.client(PATH) as client:
        assert await client.next() == CREATED
        frame = json.dumps(minutes)
        for _ in range(6):
            await client.send(frame)
        await nothing(client)
        assert await client.ask(append(1)) == error("buffer_full")
        assert await client.ask(frame) == error("buffer_full")


async def test_nothing_of_other_dialects_is_said(transcriber: Stack) -> None:
    """8.2: no queue events, no acknowledgement of `session.update`, no `session.closed`."""
    async with transcriber.client(PATH) as client:
        await opened(client, COMMIT, FINAL)
        assert await client.next() == EMPTY
        assert await client.ask({"type": "session.close"}) == error("unknown_event")
        await client.socket.close()
        assert await client.end() == ([], 1000)
