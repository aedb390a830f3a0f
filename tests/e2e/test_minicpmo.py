"""The tiny MiniCPM-o checkpoint, as published, through WebSocket, adapter and worker processes."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import antiphon
from antiphon.grpc import get_info
from antiphon.protocol.events import AudioDelta, Listening, TextDelta
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.engine.runtime import Runtime
from inference_service.engine.tick import Tick
from inference_service.families import table
from inference_service.interface.engine import Done, End, Event, Piece, UnitUsage
from inference_service.interface.setups import DuplexSettings, DuplexSetup, UnitInput, UnitOverrides
from inference_service.session.base.session import QueuedUnit
from tests.e2e.conftest import running_adapter, running_worker
from tests.inference_service.engine.support import tiny_caller
from tests.inference_service.engine.support.reference import second
from tests.inference_service.models.minicpmo import whole
from tests.inference_service.support.caller import Caller, channel_to, duplex
from tests.support.long import long

UNITS = 6
PROMPT = "Streaming Omni Conversation."
SETTINGS: dict[str, Any] = {"decode_mode": "greedy", "force_listen_count": 1, "tts_temperature": 0.7}
SLOTS = 2
COUNTED = (
    "input_text_tokens",
    "input_audio_tokens",
    "cached_tokens",
    "output_text_tokens",
    "output_audio_tokens",
)
STEADY = ("--silence-tail-units", "0")
"""A machine that is slow does not make the adapter fill the time with silence."""
Sound = NDArray[np.float32]


@dataclass
class Said:
    text: str = ""
    sound: list[Sound] = field(default_factory=list)
    listens: bool = False
    context: int = 0
    usage: UnitUsage = field(default_factory=UnitUsage)

    @property
    def samples(self) -> Sound:
        """Everything said aloud; a speaking unit that says nothing yet is shown as 20 ms of silence."""
        silence = 0 if self.listens or self.sound else 480
        return np.concatenate([*self.sound, np.zeros(silence, np.float32)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a chat template that knows tools, as the published one does."""
    folder = tmp_path_factory.mktemp("models") / "MiniCPM-o-tiny"
    return whole.write(folder, template=tiny_caller.TEMPLATES["hermes"])


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[str]:
    with running_worker("--model", str(folder), slots=SLOTS) as server:
        yield server.address


@pytest.fixture(scope="module")
def adapter(worker: str) -> Iterator[str]:
    with running_adapter(worker, *STEADY) as server:
        yield server.address.replace("http", "ws")


@pytest.fixture(scope="module")
def runtime(folder: Path) -> Iterator[Runtime]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield table.load(folder, torch.device("cpu"))(1)
    torch.set_num_threads(before)


@torch.inference_mode()
def alone(runtime: Runtime, seed: int, first: int) -> list[Said]:
    """Return the output of a lone session that calls the engine in this process."""
    settings = DuplexSettings(greedy=True, force_listen_count=1, tts_temperature=0.7)
    setup = DuplexSetup(PROMPT, settings, runtime.info.window, seed)
    session = runtime.open("alone", 0, setup, lambda event: None)
    session.preprocessor.begin()
    assert runtime.start(session) is None
    tick, units = Tick(runtime), []
    for number in range(UNITS + 1):
        if number:
            heard = session.preprocessor.prepare(UnitInput(second(first + number)))
            unit = QueuedUnit(number, heard, time.monotonic(), overrides=UnitOverrides(), finalize=True)
            session.queue.prefill(unit)
        while tick.has_work([session]):
            tick.run([session])
        units.append(said(session.events))
        session.events.clear()
    session.leave()
    runtime.clear(0)
    return units[1:]


def said(events: list[Event]) -> Said:
    unit = Said()
    for event in events:
        match event:
            case Piece(text=text, audio=audio):
                unit.text += text
                unit.sound += [] if audio is None else [audio]
            case Done(end=end, context_tokens=tokens, usage=usage):
                unit.listens, unit.context, unit.usage = end is End.LISTEN, tokens, usage
    return unit


async def converse(url: str, seed: int, first: int, *, speaks: bool = True) -> list[Said]:
    told: dict[str, Said] = {}
    async with (
        antiphon.connect(url) as client,
        client.duplex(instructions=PROMPT, settings=SETTINGS, seed=seed) as session,
    ):
        await session.send_audio(second(first + 1))
        sent = 1
        async for event in session:
            if not isinstance(event, Listening | TextDelta | AudioDelta):
                continue
            assert event.input_id is not None
            is_new = event.input_id not in told
            unit = told.setdefault(event.input_id, Said())
            unit.context = event.metrics.get("kv_cache_length", unit.context)
            match event:
                case TextDelta(text=text):
                    unit.text += text
                case AudioDelta(samples=samples):
                    unit.sound.append(samples)
                case Listening():
                    unit.listens = is_new
            is_whole = isinstance(event, Listening | AudioDelta) or not speaks
            if is_whole and sent == UNITS and len(told) == UNITS:
                break
            if is_whole and len(told) == sent and sent < UNITS:
                sent += 1
                await session.send_audio(second(first + sent))
    return list(told.values())


def same(told: list[Said], expected: list[Said]) -> None:
    assert [unit.text for unit in told] == [unit.text for unit in expected]
    assert [unit.listens for unit in told] == [unit.listens for unit in expected]
    for unit, own in zip(told, expected, strict=True):
        assert len(unit.samples) == len(own.samples)
        np.testing.assert_allclose(unit.samples, own.samples, atol=5e-3)


async def test_public_conversation_is_the_engines_own(adapter: str, runtime: Runtime) -> None:
    expected = alone(runtime, seed=1, first=0)
    told = await converse(adapter, seed=1, first=0)
    same(told, expected)
    assert [unit.context for unit in told] == [unit.context for unit in expected]
    assert any(unit.text for unit in told)
    assert sum(len(unit.samples) for unit in told) > 24_000


async def test_tokens_of_each_unit_are_counted(worker: str, runtime: Runtime) -> None:
    expected = alone(runtime, seed=2, first=3)
    async with channel_to(worker) as channel:
        caller = await Caller(channel).open()
        settings = common.DuplexConfig(
            decode_mode=common.DECODE_MODE_GREEDY, force_listen_count=1, tts_temperature=0.7
        )
        await caller.configure(mode=pb.SESSION_MODE_AUDIO, system_prompt=PROMPT, seed=2, duplex=settings)
        for number, own in enumerate(expected, start=1):
            usage = (await caller.unit(number, duplex(second(3 + number)))).done.usage
            for name in COUNTED:
                assert getattr(usage, name) == getattr(own.usage, name), name
        await caller.half_close(*caller.calls)


async def spoken(worker: str, voice: common.Voice) -> tuple[str, bytes]:
    words, sound = "", b""
    async with channel_to(worker) as channel:
        caller = await Caller(channel).open()
        settings = common.DuplexConfig(decode_mode=common.DECODE_MODE_GREEDY, force_listen_count=0)
        ready = await caller.configure(
            mode=pb.SESSION_MODE_AUDIO, system_prompt=PROMPT, seed=2, duplex=settings, voice=voice
        )
        assert not ready.ignored_fields
        for number in range(1, 4):
            told = await caller.unit(number, duplex(second(number)))
            words += told.text
            sound += b"".join(piece.audio.data for piece in told.pieces)
        await caller.half_close(*caller.calls)
    return words, sound


@long
async def test_session_voice_changes_audio_and_not_text(worker: str) -> None:
    voices = [common.Voice(), common.Voice(voice_id="anna"), cloned(), cloned()]
    told = [await spoken(worker, voice) for voice in voices]
    assert len({words for words, _ in told}) == 1
    assert len({sound for _, sound in told}) == 3
    assert told[2] == told[3]


def cloned() -> common.Voice:
    recording = whole.voice(2, seconds=2.0).astype("<f4").tobytes()
    return common.Voice(
        speech_reference=common.AudioChunk(
            encoding=common.AUDIO_ENCODING_PCM_F32LE, sample_rate_hz=16_000, data=recording
        )
    )


async def test_worker_names_its_voices_and_refuses_others(worker: str) -> None:
    assert list((await get_info(worker)).voice_ids) == ["anna", "default"]
    async with channel_to(worker) as channel:
        caller = await Caller(channel).open()
        await caller.send_config(mode=pb.SESSION_MODE_AUDIO, voice=common.Voice(voice_id="nobody"))
        assert (await caller.end()).reason == "VOICE_NOT_FOUND"


async def test_without_speech_there_are_words_and_no_sound(folder: Path) -> None:
    with (
        running_worker("--model", str(folder), "--no-speech", slots=1) as server,
        running_adapter(server.address, *STEADY) as adapter,
    ):
        told = await converse(adapter.address.replace("http", "ws"), seed=1, first=0, speaks=False)
    assert any(unit.text for unit in told)
    assert not any(unit.sound for unit in told)
