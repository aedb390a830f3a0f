"""Transcription beside conversations, with a real worker: which slots it takes, and whom it gives way to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from inference_service.interface.setups import TranscribeSetup
from tests.support.scripted_engine import EVERYTHING, Play, ScriptedEngine, hang, write
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.realtime_ga_conversation import append, message, update
from tests.ws_adapter.support.stage import Client, Stage, serving, until
from ws_adapter.dispatch.base import Need
from ws_adapter.protocol.transcription.background import MOST_ITEMS
from ws_adapter.session.spare_slots import SpareSlots
from ws_adapter.usage.line import UsageLine, decode

KIND = "conversation.item.input_audio_transcription"
URL = "/v1/realtime?model=scripted"
COMMIT = {"type": "input_audio_buffer.commit"}
CREATE = {"type": "response.create"}


def asking(**transcription: str) -> dict[str, Any]:
    """A session whose client commits, and whose user is transcribed."""
    return update(
        output_modalities=["text"], audio={"input": {"turn_detection": None, "transcription": transcription}}
    )


@asynccontextmanager
async def talking(
    *script: Play, slots: int = 2, info: Any = EVERYTHING, **options: Any
) -> AsyncIterator[tuple[Stage, ScriptedEngine]]:
    """An adapter in front of a worker that plays `script` in each session; in the end all slots are free."""
    engine = ScriptedEngine(*script, slots=slots, info=info, repeat=True)
    async with serving(engine, **options) as stage:
        yield stage, engine
        await stage.until(free_slots=slots)


async def until_told(client: Client, *kinds: str) -> dict[str, Any]:
    """Reads until each of these has come; the last event of each of them."""
    told: dict[str, Any] = {}
    while not set(kinds) <= told.keys():
        event = await client.next()
        assert event["type"] != "error", event
        told[event["type"]] = event
    return told


async def running(stage: Stage) -> list[str]:
    """Kinds of the sessions that have a slot."""
    tasks = (await stage.request("/status"))[2]["running_tasks"]
    return sorted(task["request_type"] for task in tasks)


def transcriptions(engine: ScriptedEngine) -> list[Any]:
    """Sessions at the worker that transcribe."""
    return [session for session in engine.sessions if isinstance(session.setup, TranscribeSetup)]


async def test_transcription_has_a_slot_and_is_counted_with_its_conversation(tmp_path: Path) -> None:
    log, says = tmp_path / "usage.jsonl", write("seven")
    async with talking(says, usage_log=log) as (stage, engine):
        async with stage.client(URL) as client:
            await client.send(asking(), append(0.5), COMMIT, CREATE)
            told = await until_told(client, f"{KIND}.completed", "response.done")
            assert told[f"{KIND}.completed"]["transcript"] == "seven"
            assert told["response.done"]["response"]["status"] == "completed"
            (session,) = transcriptions(engine)
            assert session.setup.is_background
            await stage.until(free_slots=1)
        await until(lambda: lines(log))

    [line] = lines(log)
    assert line.output_tokens == 2 * says.tokens
    assert line.seconds >= 2, "each of the two slots counts with a second"


def lines(log: Path) -> list[UsageLine]:
    return [decode(text) for text in log.read_bytes().splitlines()]


async def test_transcription_without_a_spare_slot_fails_and_waits_in_no_queue() -> None:
    async with (
        talking(write("seven"), slots=1, input_transcript_s=2.0) as (stage, engine),
        stage.client(URL) as client,
    ):
        await client.send(asking(), append(0.5), COMMIT, CREATE)
        done = await until_told(client, "response.done")
        assert (await stage.request("/api/queue"))[2]["queue_length"] == 0
        told = await until_told(client, f"{KIND}.failed")
        assert done["response.done"]["response"]["status"] == "completed"
        assert told[f"{KIND}.failed"]["error"]["code"] == "queue_full"
        assert transcriptions(engine) == []


async def test_transcription_is_preempted_by_new_session_and_retried_later() -> None:
    async with talking(hang("prefill"), write("seven")) as (stage, engine):
        async with stage.client(URL) as client:
            await client.send(asking(), append(0.5), COMMIT)
            await until_told(client, "conversation.item.done")
            await until(lambda: transcriptions(engine) and transcriptions(engine)[0].given)
            async with stage.client(URL) as newcomer:
                await newcomer.expect("session.created")
                assert await running(stage) == ["realtime", "realtime"]
            await until(lambda: len(transcriptions(engine)) == 2)


async def test_transcription_of_a_client_that_vanishes_frees_its_slot() -> None:
    async with talking(hang("prefill")) as (stage, engine), stage.client(URL) as client:
        await client.send(asking(), append(0.5), COMMIT)
        await until_told(client, "conversation.item.done")
        await until(lambda: transcriptions(engine) and transcriptions(engine)[0].given)
        client.vanish()


async def test_hundreds_of_items_take_one_slot_and_leave_a_neighbour_alone() -> None:
    """An attack: a client commits hundreds of tiny items, while a neighbour talks."""
    async with (
        talking(write("seven"), slots=4, input_transcript_s=600.0) as (stage, _),
        stage.client(URL) as attacker,
        stage.client(URL) as neighbour,
    ):
        await neighbour.send(asking())
        await neighbour.expect_until("session.updated")
        await attacker.send(asking())
        await attacker.expect_until("session.updated")
        flood = asyncio.create_task(attacker.send(*[append(0.1), COMMIT] * 200))
        ends: list[Any] = []

        async def read() -> None:
            while len(ends) < 200:
                event = await attacker.next()
                if event["type"] in (f"{KIND}.completed", f"{KIND}.failed"):
                    ends.append(event)

        reading = asyncio.create_task(read())
        try:
            for _ in range(5):
                await neighbour.send(message("hello"), CREATE)
                done = await until_told(neighbour, "response.done")
                assert done["response.done"]["response"]["status"] == "completed"
                assert (await running(stage)).count("transcription") <= 1
            await asyncio.gather(flood, reading)
        finally:
            for task in (flood, reading):
                task.cancel()

        failed = [event["error"]["code"] for event in ends if event["type"] == f"{KIND}.failed"]
        assert set(failed) <= {"buffer_full"}
        assert len(ends) - len(failed) >= MOST_ITEMS


async def test_transcription_of_several_sessions_takes_turns() -> None:
    """One session that has much to transcribe keeps no other one's words back."""
    slots = SpareSlots()
    need = Need()
    order: list[str] = []

    async def work(name: str, count: int) -> None:
        for _ in range(count):
            async with slots.turn(need):
                order.append(name)
                await asyncio.sleep(0)

    assert not slots.are_wanted(need)
    await asyncio.gather(work("much", 4), work("little", 1))

    assert order.index("little") == 1
    assert not slots.are_wanted(need)


async def test_model_that_is_not_served_fails_each_item_by_name() -> None:
    async with talking(write("seven")) as (stage, _), stage.client(URL) as client:
        await client.send(asking(model="unknown"), append(0.5), COMMIT)
        told = await until_told(client, f"{KIND}.failed")
        assert told[f"{KIND}.failed"]["error"]["code"] == "model_not_found"
        assert told[f"{KIND}.failed"]["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("modes", "code"), [("chat", "not_allowed"), ("chat,audio,video,transcription", "")])
async def test_key_may_have_conversations_without_transcription(
    tmp_path: Path, modes: str, code: str
) -> None:
    keys = KeyFile(tmp_path / "keys", "admin")
    keys.add("alice", modes=modes)
    async with talking(write("seven"), auth="keys", keys=keys.path) as (stage, _):
        async with stage.client(URL, additional_headers=keys.bearer("alice")) as client:
            await client.send(asking(), append(0.5), COMMIT, CREATE)
            end = f"{KIND}.failed" if code else f"{KIND}.completed"
            told = await until_told(client, end, "response.done")
    assert told[end].get("error", {}).get("code", "") == code
    assert told["response.done"]["response"]["status"] == "completed"
