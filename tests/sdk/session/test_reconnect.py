"""`client.duplex(reconnect=True)`: a conversation that goes on over another connection."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

import antiphon
from inference_service.interface.setups import StreamInput
from tests.failures.link import Link, link_to
from tests.sdk.replay import CREATED, QUEUE_DONE, Peer, replay
from tests.support.patience import PATIENCE_S, START_S
from tests.support.scripted_engine import (
    EVERYTHING,
    ScriptedEngine,
    hang,
    listen,
    running_worker,
    speak,
    write,
)
from tests.ws_adapter.support.stage import Stage, running_adapter, until

SECOND = np.full(16_000, 0.1, np.float32)


@asynccontextmanager
async def behind_a_link(engine: ScriptedEngine, **options: Any) -> AsyncIterator[tuple[Stage, Link]]:
    options = {"resume_window_s": 60, "silence_tail_units": 0, **options}
    async with running_worker(engine, slots=engine.slots) as worker:
        async with running_adapter(worker.address, **options) as stage:
            async with link_to(stage.address.removeprefix("http://")) as link:
                yield stage, link


@asynccontextmanager
async def conversing(
    engine: ScriptedEngine, **options: Any
) -> AsyncIterator[tuple[antiphon.DuplexSession, Link]]:
    async with behind_a_link(engine, **options) as (_, link):
        async with antiphon.connect(f"ws://{link.address}") as client:
            async with client.duplex(reconnect=True) as session:
                await expect(session, antiphon.Created)
                yield session, link


@asynccontextmanager
async def transcribing(engine: ScriptedEngine) -> AsyncIterator[tuple[antiphon.TranscriptionSession, Link]]:
    async with behind_a_link(engine) as (_, link), antiphon.connect(f"ws://{link.address}") as client:
        async with client.transcribe(reconnect=True) as session:
            yield session, link


async def expect(session: antiphon.DuplexSession, *kinds: type) -> Any:
    """The next events are of these kinds; returns the last."""
    event: object = None
    async with asyncio.timeout(PATIENCE_S):
        for kind in kinds:
            event = await anext(session)
            assert isinstance(event, kind), event
    return event


async def test_lost_connection_is_resumed_without_missing_or_repeated_events() -> None:
    engine = ScriptedEngine(listen(), hang("generate"), speak("word"))
    async with conversing(engine) as (session, link):
        for _ in range(3):
            await session.send_audio(SECOND)
        await expect(session, antiphon.Listening)
        await until(lambda: 2 in engine.session.heard)
        link.cut()
        lost = await expect(session, antiphon.ConnectionLost)
        assert lost.window_s == 60
        assert (await expect(session, antiphon.Resumed)).attempts >= 1
        engine.session.release("generate", 2)
        units = [(await expect(session, antiphon.Listening)).unit]
        units.append((await expect(session, antiphon.TextDelta)).unit)
        assert units == [1, 2]
        await expect(session, antiphon.AudioDelta)
        await session.send_audio(SECOND)
        await expect(session, antiphon.Interrupted)
        assert len(engine.sessions) == 1
        assert list(engine.session.heard) == [1, 2, 3, 4]


async def test_audio_sent_on_a_lost_connection_arrives_once() -> None:
    """The network takes it and does not deliver it."""
    engine = ScriptedEngine(listen())
    async with conversing(engine) as (session, link):
        await session.send_audio(SECOND)
        await expect(session, antiphon.Listening)
        link.hold()
        for _ in range(3):
            await session.send_audio(SECOND)
        link.heal_new()
        link.cut()
        await expect(session, antiphon.ConnectionLost, antiphon.Resumed)
        await expect(session, *[antiphon.Listening] * 3)
        assert list(engine.session.heard) == [1, 2, 3, 4]
        assert all(np.allclose(pcm, 0.1) for pcm in engine.session.heard.values())


async def test_server_unreachable_beyond_the_window_ends_the_conversation() -> None:
    engine = ScriptedEngine(listen())
    async with conversing(engine, resume_window_s=1) as (session, link):
        link.target = None
        link.cut()
        await expect(session, antiphon.ConnectionLost)
        with pytest.raises(antiphon.SessionClosed) as closed:
            await expect(session, antiphon.Resumed)
        assert closed.value.reason == "connection_lost"
        with pytest.raises(antiphon.SessionClosed):
            await session.send_audio(SECOND)


async def test_session_that_is_gone_ends_the_conversation_at_once() -> None:
    engine = ScriptedEngine(listen())
    async with conversing(engine) as (session, link), running_worker(ScriptedEngine(listen())) as other:
        async with running_adapter(other.address, resume_window_s=60) as second:
            link.target = second.address.removeprefix("http://")
            link.cut()
            await expect(session, antiphon.ConnectionLost)
            with pytest.raises(antiphon.SessionClosed):
                await expect(session, antiphon.Resumed)


async def test_conversation_without_reconnect_ends_with_its_connection() -> None:
    engine = ScriptedEngine(listen())
    async with behind_a_link(engine) as (_, link):
        async with antiphon.connect(f"ws://{link.address}") as client, client.duplex() as session:
            created = await expect(session, antiphon.Created)
            assert created.resume is not None
            link.cut()
            with pytest.raises(antiphon.SessionClosed) as closed:
                await expect(session, antiphon.ConnectionLost)
            assert closed.value.reason == "connection_lost"


async def test_server_without_resuming_ends_the_conversation_with_its_connection() -> None:
    engine = ScriptedEngine(listen())
    async with behind_a_link(engine, resume_window_s=0) as (_, link):
        async with antiphon.connect(f"ws://{link.address}") as client:
            async with client.duplex(reconnect=True) as session:
                assert (await expect(session, antiphon.Created)).resume is None
                link.cut()
                with pytest.raises(antiphon.SessionClosed):
                    await expect(session, antiphon.ConnectionLost)


async def test_close_while_the_connection_is_lost_ends_at_once() -> None:
    engine = ScriptedEngine(listen())
    async with behind_a_link(engine) as (_, link), antiphon.connect(f"ws://{link.address}") as client:
        async with client.duplex(reconnect=True) as session:
            await expect(session, antiphon.Created)
            link.target = None
            link.cut()
            await expect(session, antiphon.ConnectionLost)
        async with asyncio.timeout(PATIENCE_S):
            assert [event async for event in session] == []


async def test_answer_of_a_chat_goes_on_over_another_connection() -> None:
    words = ("One ", "two ", "three.")
    engine = ScriptedEngine(write(*words, hold="generate"), info=EVERYTHING)
    async with behind_a_link(engine) as (_, link):
        async with antiphon.connect(f"ws://{link.address}") as client:
            async with client.chat("Count.", reconnect=True) as turn:
                link.cut()
                engine.session.release("generate", 1)
                async with asyncio.timeout(PATIENCE_S):
                    assert (await turn.answer()).text == "".join(words)
        assert len(engine.sessions) == 1


async def test_unretained_messages_cause_no_duplicates_after_resume() -> None:
    """Appends of 30 s are larger than what is kept, so that only the last one is sent again."""
    offer = {"token": "resume_1", "window_s": PATIENCE_S}
    received = iter((1, 2))
    came: list[list[object]] = []
    resumed = asyncio.Event()

    async def script(peer: Peer) -> None:
        came.append([])
        if len(came) == 1:
            await peer.send(QUEUE_DONE)
            await peer.receive("session.init")
            await peer.send({**CREATED, "resume": offer})
        else:
            told = {"resume": offer, "last_event": 2, "received": next(received)}
            await peer.send({"type": "session.resumed", **told})
        for _ in range((2, 1, 1)[len(came) - 1]):
            body = (await peer.receive("input.append"))["input"]
            assert isinstance(body, dict)
            came[-1].append(body["input_id"])
        if len(came) == 3:
            await peer.end()
            return
        if len(came) == 2:
            await asyncio.wait_for(resumed.wait(), PATIENCE_S)
        peer.socket.transport.abort()

    async with replay(script) as url, antiphon.connect(url) as client:
        async with client.duplex(reconnect=True) as session:
            await expect(session, antiphon.Created)
            sent = [await session.send_audio(np.zeros(30 * 16_000, np.float32)) for _ in range(2)]
            for _ in range(2):
                await expect(session, antiphon.ConnectionLost, antiphon.Resumed)
                resumed.set()
            sent.append(await session.send_audio(SECOND))
            await until(lambda: len(came) == 3 and came[2])

    assert came == [sent[:2], sent[1:2], sent[2:]]


async def words_of(session: antiphon.TranscriptionSession) -> str:
    """The deltas up to the transcript, which has the same text."""
    said = ""
    async with asyncio.timeout(PATIENCE_S):
        async for event in session:
            if isinstance(event, antiphon.Transcript):
                assert event.text == said
                return said
            assert isinstance(event, antiphon.TextDelta), event
            said += event.text
    raise AssertionError("no transcript came")


def heard_s(engine: ScriptedEngine) -> float:
    """Seconds of audio that the model of the one session was given."""
    units = [unit for unit in engine.session.given.values() if isinstance(unit, StreamInput)]
    return sum(len(unit.chunk) for unit in units if isinstance(unit.chunk, np.ndarray)) / 16_000


async def test_transcription_goes_on_over_another_connection() -> None:
    engine = ScriptedEngine(write("One "), info=EVERYTHING)
    async with transcribing(engine) as (session, link):
        await session.send_audio(SECOND)
        async with asyncio.timeout(PATIENCE_S):
            assert await anext(session) == antiphon.TextDelta("One ")
        link.cut()
        transcript = asyncio.create_task(anext(session))
        await session.send_audio(SECOND)
        await session.end_utterance()
        async with asyncio.timeout(PATIENCE_S):
            assert await transcript == antiphon.Transcript("One ", ANY, ANY)
        assert len(engine.sessions) == 1
        assert heard_s(engine) == 2


async def test_transcription_sent_before_reading_arrives_once() -> None:
    """No task receives when the connection is lost: the sending task opens the next one."""
    engine = ScriptedEngine(write("One "), info=EVERYTHING)
    async with transcribing(engine) as (session, link):
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(3):
                await session.send_audio(SECOND)
                link.cut()
            await session.end_utterance()
        assert await words_of(session) == "One "
        assert len(engine.sessions) == 1
        assert heard_s(engine) == 3


async def test_cancelled_receiver_leaves_resume_to_next_task() -> None:
    engine = ScriptedEngine(write("One "), info=EVERYTHING)
    async with transcribing(engine) as (session, link):
        lost = asyncio.Event()
        session._socket.on_lost = lambda window_s: lost.set()
        target, link.target = link.target, None
        link.cut()
        receiving = asyncio.create_task(anext(session))
        async with asyncio.timeout(PATIENCE_S):
            await lost.wait()
        receiving.cancel()
        await asyncio.wait({receiving})
        link.target = target
        async with asyncio.timeout(PATIENCE_S):
            await session.send_audio(SECOND)
            await session.end_utterance()
        assert await words_of(session) == "One "
        assert heard_s(engine) == 1


async def test_command_chat_prints_an_answer_over_two_connections() -> None:
    words = ("One ", "two ", "three.")
    engine = ScriptedEngine(write(*words, hold="generate"), info=EVERYTHING)
    async with behind_a_link(engine) as (_, link):
        command = [
            sys.executable,
            "-m",
            "antiphon_command",
            "chat",
            "Count.",
            "--url",
            f"ws://{link.address}",
        ]
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        try:
            async with asyncio.timeout(START_S):
                assert process.stdout is not None
                begin = await process.stdout.readexactly(len(words[0]))
                link.cut()
                engine.session.release("generate", 1)
                rest, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

        assert (begin + rest).decode() == "".join(words) + "\n", errors.decode()
        assert process.returncode == 0
        assert len(engine.sessions) == 1
