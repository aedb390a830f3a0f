"""Conversations with the real adapter, in front of a worker that plays a script."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import antiphon
from antiphon import (
    AudioDelta,
    Client,
    Clip,
    Created,
    Event,
    Image,
    ImageError,
    Listening,
    ProtocolError,
    SessionClosed,
    TextDelta,
    TurnEnd,
)
from tests.support.drawing import encoded, picture
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import EVERYTHING, TALK, Play, ScriptedEngine, running_worker
from tests.ws_adapter.support.stage import running_adapter

pytestmark = pytest.mark.usefixtures("no_leaked_tasks", "proper_events")

MODES: dict[Literal["audio", "video"], bool] = {"audio": False, "video": True}
"""Whether the model sees in them."""

SECOND = np.full(16_000, 0.1, np.float32)


@asynccontextmanager
async def server(*script: Play, slots: int = 2, **options: Any) -> AsyncIterator[Client]:
    async with server_of(ScriptedEngine(*script, slots=slots), **options) as client:
        yield client


@asynccontextmanager
async def server_of(engine: ScriptedEngine, **options: Any) -> AsyncIterator[Client]:
    async with running_worker(engine, slots=engine.slots) as worker:
        async with running_adapter(worker.address, **options) as stage:
            async with antiphon.connect(stage.address) as client:
                yield client


async def until(session: antiphon.DuplexSession, kind: type[Event]) -> list[Event]:
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
    speaking = [TextDelta, AudioDelta]
    kinds = [type(event) for event in events]
    assert kinds == [Created, Listening, Listening, *speaking, *speaking, *speaking, TurnEnd]
    texts = [event for event in events if isinstance(event, TextDelta)]
    assert "".join(event.text for event in texts) == "Hello there how are you?"
    audio = [event.samples for event in events if isinstance(event, AudioDelta)]
    assert sum(map(len, audio)) == 2.5 * antiphon.OUTPUT_RATE_HZ
    said = [event for event in events if isinstance(event, TextDelta | AudioDelta | TurnEnd)]
    assert len({event.response_id for event in said}) == 1
    assert [event.unit for event in events if isinstance(event, Listening | TextDelta)] == [0, 1, 2, 3, 4]


async def test_settings_without_effect_are_reported_and_refused_ones_named() -> None:
    """One of another type is refused without connecting."""
    async with server() as client:
        async with client.duplex(settings={"poetry": True}) as session:
            created = await anext(session)
        assert isinstance(created, Created)
        assert any("poetry" in path for path in created.unsupported_fields)
        with pytest.raises(ProtocolError) as caught:
            async with client.duplex(settings={"top_p": 7.0}):
                pass
        assert (caught.value.reason, caught.value.param) == ("invalid_payload", "payload.config.top_p")
        with pytest.raises(antiphon.AntiphonError) as refused:
            async with client.duplex(mode="video"):
                pass
        assert not refused.value.retryable
    async with antiphon.connect("ws://127.0.0.1:1") as client:
        with pytest.raises(ProtocolError) as caught:
            async with client.duplex(instructions=5):  # type: ignore[arg-type]
                pass
        assert (caught.value.reason, caught.value.param) == ("invalid_argument", "instructions")


async def test_settings_reach_the_worker_in_either_mode() -> None:
    info = replace(EVERYTHING, hears_voices=True, clones_voices=True)
    engine = ScriptedEngine(info=info)
    voice = np.full(16_000, 0.25, np.float32)
    async with server_of(engine) as client:
        for mode, sees in MODES.items():
            async with client.duplex(
                "Be brief.", mode=mode, voice=Clip(voice), settings={"top_k": 5}, seed=7
            ):
                setup = engine.sessions[-1].duplex
                assert (setup.system_prompt, setup.seed, setup.sees) == ("Be brief.", 7, sees)
                assert setup.duplex.top_k == 5
                assert setup.voice.heard is not None
                assert np.allclose(setup.voice.heard, voice)


async def test_voice_of_the_server_reaches_the_worker_by_its_id() -> None:
    info = replace(EVERYTHING, hears_voices=True, clones_voices=True, voice_ids=frozenset({"amber"}))
    engine = ScriptedEngine(info=info)
    async with server_of(engine) as client:
        async with client.duplex(voice="amber"):
            assert engine.sessions[-1].duplex.voice.voice_id == "amber"
        with pytest.raises(antiphon.AntiphonError, match="nobody"):
            async with client.duplex(voice="nobody"):
                pass


async def test_pictures_go_with_the_next_second_of_audio(tmp_path: Path) -> None:
    pictures = [encoded(picture(size=(64 + n, 64)), kind) for n, kind in enumerate(["JPEG", "PNG", "WEBP"])]
    (tmp_path / "last.webp").write_bytes(pictures[2])
    engine = ScriptedEngine(info=EVERYTHING)
    async with server_of(engine, silence_tail_units=0) as client, client.duplex(mode="video") as session:
        await session.send_audio(SECOND)
        await session.send_frame(pictures[0])
        await session.send_frame(Image(pictures[1]))
        await session.send_frame(tmp_path / "last.webp")
        await session.send_audio(SECOND)
        await session.send_audio(SECOND)
        for _ in range(3):
            await until(session, Listening)
    assert list(engine.session.seen.values()) == [(), tuple(pictures), ()]


async def test_picture_that_cannot_be_sent_is_refused_here(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no picture")
    async with server_of(ScriptedEngine(info=EVERYTHING)) as client:
        async with client.duplex() as session:
            with pytest.raises(ProtocolError, match=r'client\.duplex\(mode="video"\)') as refused:
                await session.send_frame(encoded(picture()))
        assert refused.value.reason == "unsupported_mode"
        async with client.duplex(mode="video") as session:
            with pytest.raises(ImageError, match=r"notes\.txt is no JPEG, PNG or WebP file"):
                await session.send_frame(tmp_path / "notes.txt")
            with pytest.raises(FileNotFoundError):
                await session.send_frame(str(tmp_path / "missing.png"))
            await session.send_audio(SECOND)
            await until(session, Listening)
            await session.close()
            with pytest.raises(SessionClosed):
                await session.send_frame(encoded(picture()))
