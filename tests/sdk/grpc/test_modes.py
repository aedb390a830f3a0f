"""Chat turns and chunks of a growing context over the three streams, on a worker's real server."""

from collections.abc import AsyncIterator
from typing import TypeVar

import numpy as np
import pytest

from antiphon import AudioError, Clip, Image, Message, SessionClosed, Video
from antiphon.contract import Reason
from antiphon.grpc import Audio as SpokenAudio
from antiphon.grpc import Finalized, Finish, Output, Prefilled, Session, Text, UnitDone
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.interface import engine as engine_api
from inference_service.interface import setups
from tests.sdk.audio.test_wav import wav_bytes
from tests.support.scripted_engine import (
    EVERYTHING,
    RunningWorker,
    ScriptedEngine,
    hang,
    running_worker,
    turn_end,
    write,
)

pytestmark = pytest.mark.usefixtures("no_leaked_tasks")
T = TypeVar("T", Prefilled, UnitDone)

MP4 = b"\0\0\0\x10ftypisom"
SECOND = np.full(16_000, 0.25, np.float32)
CHAT = pb.SessionConfig(mode=pb.SESSION_MODE_CHAT)
TOKENS = pb.SessionConfig(mode=pb.SESSION_MODE_TOKENS)
TRANSCRIBE = pb.SessionConfig(mode=pb.SESSION_MODE_TRANSCRIBE)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(
        write("One", " two."), write(" three", finish=engine_api.Finish.LENGTH), info=EVERYTHING, repeat=True
    )


@pytest.fixture
async def worker(engine: ScriptedEngine) -> AsyncIterator[RunningWorker]:
    async with running_worker(engine) as running:
        yield running


async def read_all(session: Session) -> list[Output]:
    session.half_close()
    return [output async for output in session]


def said(outputs: list[Output], unit: int) -> str:
    return "".join(output.text for output in outputs if isinstance(output, Text) and output.unit == unit)


def the(kind: type[T], outputs: list[Output], unit: int) -> T:
    [one] = [output for output in outputs if isinstance(output, kind) and output.unit == unit]
    return one


async def test_turn_carries_its_history(worker: RunningWorker, engine: ScriptedEngine) -> None:
    wav = wav_bytes(np.array([0, 16384], "<i2").tobytes())
    history = [
        Message("system", "Be brief."),
        Message("user", [Image(b"\x89PNG"), Clip(wav), Clip(SECOND), Video(MP4, 3), "What is it?"]),
        Message("assistant", "A circle."),
        Message("user", "Which colour?"),
    ]
    async with Session.open(worker.address, CHAT) as session:
        assert await session.send_turn(history, enable_thinking=True, omni_mode=True) == 1
        outputs = await read_all(session)

    turn = engine.session.given[1]
    assert isinstance(turn, setups.TurnInput)
    assert [message.role for message in turn.messages] == ["system", "user", "assistant", "user"]
    picture, from_file, clip, video, text = turn.messages[1].parts
    assert picture == setups.Picture(b"\x89PNG")
    assert isinstance(from_file, setups.Clip)
    assert from_file.pcm.tolist() == [0.0, 0.5]
    assert isinstance(clip, setups.Clip)
    assert np.array_equal(clip.pcm, SECOND)
    assert isinstance(video, setups.Video)
    assert (video.data, video.stack_frames) == (MP4, 3)
    assert text == "What is it?"
    assert (turn.enable_thinking, turn.omni_mode, turn.speaks) == (True, True, False)
    assert said(outputs, 1) == "One two."
    done = the(UnitDone, outputs, 1)
    assert (done.finish, done.usage.output_text_tokens) == (Finish.EOS, 2)


async def test_each_turn_has_its_own_settings(worker: RunningWorker, engine: ScriptedEngine) -> None:
    async with Session.open(worker.address, CHAT) as session:
        await session.send_turn("Prime?", sampling=common.SamplingParams(temperature=0.0, stop=["."]))
        await session.send_turn("And now?", image=pb.ImageConfig(max_slice_nums=2, use_image_id=False))
        outputs = await read_all(session)
    assert (engine.session.overrides[1].temperature, engine.session.overrides[1].stop) == (0.0, (".",))
    assert engine.session.overrides[2] == setups.UnitOverrides()
    second = engine.session.given[2]
    assert isinstance(second, setups.TurnInput)
    assert (second.max_slice_nums, second.use_image_id) == (2, False)
    assert [said(outputs, unit) for unit in (1, 2)] == ["One two.", " three"]
    done = the(UnitDone, outputs, 2)
    assert done.finish is Finish.LENGTH


async def test_spoken_turn() -> None:
    engine = ScriptedEngine(turn_end("Yes.", seconds=0.5), info=EVERYTHING)
    async with running_worker(engine) as worker, Session.open(worker.address, CHAT) as session:
        await session.send_turn("Is it true?", tts=pb.TtsConfig(enabled=True))
        outputs = await read_all(session)
    turn = engine.session.given[1]
    assert isinstance(turn, setups.TurnInput)
    assert turn.speaks
    assert sum(len(output.samples) for output in outputs if isinstance(output, SpokenAudio)) == 12_000


async def test_clip_of_another_rate_is_refused_by_the_sdk(worker: RunningWorker) -> None:
    async with Session.open(worker.address, CHAT) as session:
        with pytest.raises(AudioError, match="24000 Hz"):
            await session.send_turn([Message("user", [Clip(SECOND, 24_000)])])
        assert await session.send_turn("Prime?") == 1


async def test_chunks_of_ids_and_of_text(worker: RunningWorker, engine: ScriptedEngine) -> None:
    async with Session.open(worker.address, TOKENS) as session:
        assert session.ready.max_units_in_flight == 8
        await session.send_chunk([5, 6], begin=True, keep_last_token=True)
        await session.send_chunk(np.array([7], np.int64), sampling=common.SamplingParams(max_new_tokens=3))
        await session.send_chunk("and so on")
        await session.send_chunk(end=True)
        outputs = await read_all(session)

    assert engine.session.given == {
        1: setups.StreamInput((5, 6), begins=True),
        2: setups.StreamInput((7,)),
        3: setups.StreamInput("and so on"),
        4: setups.StreamInput(None, ends=True),
    }
    assert engine.session.kept == {1}
    assert [engine.session.overrides[unit].max_new_tokens for unit in (1, 2)] == [None, 3]
    pieces = [output for output in outputs if isinstance(output, Text) and output.unit == 1]
    assert [token for piece in pieces for token in piece.token_ids] == [7, 8, 7, 8]
    finalized = [output for output in outputs if isinstance(output, Finalized)]
    assert [(one.unit, one.discarded_tokens) for one in finalized] == [(1, 0), (2, 1), (3, 1), (4, 1)]
    assert finalized[-1].session_usage.input_text_tokens == 8
    heard = the(Prefilled, outputs, 1)
    assert heard.usage.input_text_tokens == 2


async def test_chunks_of_audio_of_any_length(worker: RunningWorker, engine: ScriptedEngine) -> None:
    async with Session.open(worker.address, TRANSCRIBE) as session:
        await session.send_chunk(np.tile(SECOND, 3), begin=True)
        await session.send_chunk(SECOND[:100].tobytes(), end=True)
        outputs = await read_all(session)
    chunks = [engine.session.given[unit] for unit in (1, 2)]
    assert [len(chunk.chunk) for chunk in chunks if isinstance(chunk, setups.StreamInput)] == [48_000, 100]  # type: ignore[arg-type]
    assert said(outputs, 1) + said(outputs, 2) == "One two. three"


async def test_refused_chunk_is_an_output(worker: RunningWorker) -> None:
    async with Session.open(worker.address, TOKENS) as session:
        await session.send_chunk([5, 100_000])
        await session.send_chunk([5])
        outputs = await read_all(session)
    refused = the(Prefilled, outputs, 1)
    assert refused.error is not None
    assert refused.error.reason == Reason.PARAMS_INVALID
    assert said(outputs, 2) == " three"
    with pytest.raises(SessionClosed):
        await session.send_chunk([5])


async def test_send_times_out_if_the_worker_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.grpc.session._SILENCE_TIMEOUT_S", 0.2)
    monkeypatch.setattr("antiphon.grpc.session._DRAIN_TIMEOUT_S", 0.2)
    async with running_worker(ScriptedEngine(hang("generate"), info=EVERYTHING)) as worker:
        async with Session.open(worker.address, CHAT) as session:
            await session.send_turn("Prime?")
            await session.send_turn("Prime?")
            with pytest.raises(SessionClosed, match="said nothing for"):
                await session.send_turn("Prime?")
