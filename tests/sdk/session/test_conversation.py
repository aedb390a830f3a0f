"""Conversations with the real adapter, in front of a worker that plays a script."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import antiphon
from antiphon import (
    AudioDelta,
    Client,
    Closed,
    ConnectError,
    Created,
    ErrorEvent,
    Event,
    Interrupted,
    Listening,
    ProtocolError,
    Queued,
    QueueFull,
    SessionClosed,
    TextDelta,
    TurnEnd,
)
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import (
    TALK,
    Play,
    ScriptedEngine,
    context_full,
    fails,
    hang,
    running_worker,
    speak,
    turn_end,
)
from tests.ws_adapter.support.stage import running_adapter

pytestmark = pytest.mark.usefixtures("no_leaked_tasks", "proper_events")

SECOND = np.full(16_000, 0.1, np.float32)


@asynccontextmanager
async def server(*script: Play, slots: int = 2, **options: Any) -> AsyncIterator[Client]:
    """A client of an adapter whose worker plays the script."""
    async with running_worker(ScriptedEngine(*script, slots=slots), slots=slots) as worker:
        async with running_adapter(worker.address, **options) as stage:
            async with antiphon.connect(stage.address) as client:
                yield client


async def until(session: antiphon.DuplexSession, kind: type[Event]) -> list[Event]:
    """The events up to the first of a kind."""
    events = []
    async with asyncio.timeout(PATIENCE_S):
        async for event in session:
            events.append(event)
            if isinstance(event, kind):
                break
    return events


async def test_whole_turn() -> None:
    async with server(*TALK) as client, client.duplex("Be brief.") as session:
        for _ in TALK:
            await session.send_audio(SECOND)
        events = await until(session, TurnEnd)

    kinds = [type(event) for event in events]
    speaking = [TextDelta, AudioDelta]
    assert kinds == [Created, Listening, Listening, *speaking, *speaking, *speaking, TurnEnd]
    assert (
        "".join(event.text for event in events if isinstance(event, TextDelta)) == "Hello there how are you?"
    )
    audio = [event.samples for event in events if isinstance(event, AudioDelta)]
    assert sum(map(len, audio)) == 2.5 * antiphon.OUTPUT_RATE_HZ
    assert (
        len({event.response_id for event in events if isinstance(event, TextDelta | AudioDelta | TurnEnd)})
        == 1
    )
    assert [event.unit for event in events if isinstance(event, Listening | TextDelta)] == [0, 1, 2, 3, 4]


async def test_ids_of_inputs_come_back() -> None:
    async with server() as client, client.duplex() as session:
        sent = [await session.send_audio(SECOND) for _ in range(3)]
        heard = [(await until(session, Listening))[-1] for _ in range(3)]

    assert [event.input_id for event in heard if isinstance(event, Listening)] == sent


async def test_forced_listening_interrupts_the_model() -> None:
    async with server(speak("I could go on"), speak(" and on")) as client, client.duplex() as session:
        await session.send_audio(SECOND)
        await until(session, AudioDelta)
        await session.force_listen()
        events = await until(session, Interrupted)

    assert len(events) == 1


async def test_file_is_answered(tmp_path: Path) -> None:
    antiphon.write_wav(tmp_path / "question.wav", SECOND[:8000], antiphon.INPUT_RATE_HZ)
    async with server(turn_end("Yes.")) as client, client.duplex() as session:
        async with session.stream_file(tmp_path / "question.wav"):
            events = await until(session, TurnEnd)

    assert [event.text for event in events if isinstance(event, TextDelta)] == ["Yes."]


async def test_close_is_confirmed_with_its_reason() -> None:
    async with server() as client, client.duplex() as session:
        await session.close("lunch")
        assert (await until(session, Closed))[-1] == Closed("lunch", None, None)
        assert [event async for event in session] == []


async def test_failed_unit_is_an_event_and_the_conversation_goes_on() -> None:
    async with server(fails(), turn_end("Yes.")) as client, client.duplex() as session:
        await session.send_audio(SECOND)
        error, listening = (await until(session, Listening))[-2:]
        await session.send_audio(SECOND)
        await until(session, TurnEnd)

    assert isinstance(error, ErrorEvent)
    assert error.code == "inference_error"
    assert isinstance(listening, Listening)


async def test_full_context_is_a_quiet_end() -> None:
    async with server(context_full()) as client, client.duplex() as session:
        await session.send_audio(SECOND)
        events = [event async for event in session]

    assert isinstance(events[-1], Closed)
    assert events[-1].reason == "context_full"


async def test_time_limit_is_a_quiet_end() -> None:
    async with server(session_limit_audio_s=3.0) as client, client.duplex() as session:
        async with asyncio.timeout(PATIENCE_S):
            events = [event async for event in session]

    assert isinstance(events[-1], Closed)
    assert events[-1].reason == "timeout"


async def test_lost_worker_ends_the_conversation_with_an_error() -> None:
    async with server(Play(breaks_device=True)) as client, client.duplex() as session:
        await session.send_audio(SECOND)
        with pytest.raises(SessionClosed) as caught:
            await until(session, TurnEnd)

    assert (caught.value.reason, caught.value.code, caught.value.retryable) == ("backend_error", 1011, True)


async def test_refused_setting_is_named() -> None:
    async with server() as client:
        with pytest.raises(ProtocolError) as caught:
            async with client.duplex(config={"top_p": 7.0}):
                pass

    assert caught.value.reason == "invalid_payload"
    assert caught.value.param is not None
    assert "top_p" in caught.value.param


async def test_setting_without_effect_is_reported() -> None:
    async with server() as client, client.duplex(config={"poetry": True}) as session:  # type: ignore[typeddict-unknown-key]
        created = await anext(session)

    assert isinstance(created, Created)
    assert any("poetry" in path for path in created.unsupported_fields)


async def test_second_conversation_waits_for_the_slot_of_the_first() -> None:
    places: list[Queued] = []
    waiting = asyncio.Event()

    def on_queue(place: Queued) -> None:
        places.append(place)
        waiting.set()

    async def second(client: Client) -> str:
        async with client.duplex(on_queue=on_queue) as session:
            return session.id

    async with server(slots=1) as client:
        async with client.duplex() as session:
            waiter = asyncio.create_task(second(client))
            await asyncio.wait_for(waiting.wait(), PATIENCE_S)
        assert await asyncio.wait_for(waiter, PATIENCE_S) != session.id

    assert (places[0].position, places[0].queue_length) == (1, 1)


async def test_queue_without_room_refuses() -> None:
    async def wait(client: Client, waiting: asyncio.Event) -> None:
        async with client.duplex(on_queue=lambda _: waiting.set()):
            pass

    async with server(slots=1, queue_capacity=1) as client, client.duplex():
        waiting = asyncio.Event()
        waiter = asyncio.create_task(wait(client, waiting))
        await asyncio.wait_for(waiting.wait(), PATIENCE_S)
        with pytest.raises(QueueFull) as caught:
            await wait(client, waiting)
        waiter.cancel()
        await asyncio.wait({waiter})

    assert (caught.value.reason, caught.value.retryable) == ("queue_full", True)


async def test_server_without_a_worker_is_worth_another_try() -> None:
    async with running_adapter("unix:/nowhere/worker.sock", wait=False, no_worker_grace_s=0.05) as stage:
        async with antiphon.connect(stage.address) as client:
            with pytest.raises(ConnectError) as caught:
                async with client.duplex():
                    pass

    assert (caught.value.reason, caught.value.retryable) == ("service_unavailable", True)


async def test_server_that_shuts_down_ends_the_conversation_with_an_error() -> None:
    async with running_worker(ScriptedEngine(hang("generate"))) as worker:
        async with running_adapter(worker.address) as stage:
            async with antiphon.connect(stage.address) as client, client.duplex() as session:
                stage.adapter.interrupt()
                stage.adapter.interrupt()
                with pytest.raises(SessionClosed) as caught:
                    await until(session, TurnEnd)

    assert (caught.value.reason, caught.value.code) == ("server_shutdown", 1012)
    assert caught.value.retryable
