"""The tiny MiniCPM-o in each dtype, through `antiphon worker`: it warms up, listens, speaks and chats."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.options import DTYPES
from tests.e2e.conftest import running_worker
from tests.e2e.support.visit import visit
from tests.inference_service.engine.support.reference import second
from tests.inference_service.models.minicpmo import whole
from tests.inference_service.support.caller import Caller, UnitAnswers, channel_to, duplex
from tests.support.drawing import jpeg
from tests.support.long import long

SPEAKS = common.DuplexConfig(
    decode_mode=common.DECODE_MODE_GREEDY, force_listen_count=0, listen_prob_scale=0.0
)
PICTURE = common.Image(data=jpeg("red", "circle", (300, 170)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole.write(tmp_path_factory.mktemp("models") / "MiniCPM-o-tiny")


@pytest.fixture(scope="module", params=DTYPES)
def worker(folder: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Start a worker, ready after a warm-up with picture units and a second of speech."""
    options = ("--model", str(folder), "--dtype", str(request.param), "--context-limit", "2048")
    with running_worker(*options, slots=2) as server:
        yield server.address


def sound(units: list[UnitAnswers]) -> np.ndarray:
    data = b"".join(piece.audio.data for unit in units for piece in unit.pieces)
    return np.frombuffer(data, "<f4")


@pytest.mark.parametrize("mode", [pb.SESSION_MODE_AUDIO, pb.SESSION_MODE_VIDEO])
@pytest.mark.sample("bfloat16-2")
@long
async def test_worker_in_each_dtype_listens_and_then_speaks(worker: str, mode: pb.SessionMode) -> None:
    async with channel_to(worker) as channel:
        caller = await Caller(channel).open()
        await caller.configure(mode=mode, seed=1, duplex=SPEAKS)
        units = []
        for number in range(1, 5):
            heard = duplex(second(number))
            if mode == pb.SESSION_MODE_VIDEO:
                heard.frames.append(PICTURE)
            units.append(await caller.unit(number, heard, force_listen=number == 1))
        await caller.half_close(*caller.calls)

    assert units[0].done.end == pb.UNIT_END_LISTEN
    assert not units[0].text
    assert all(unit.done.end in (pb.UNIT_END_CHUNK, pb.UNIT_END_TURN) for unit in units[1:])
    assert len(sound(units)) > 24_000
    assert np.isfinite(sound(units)).all()


@pytest.mark.sample("bfloat16")
async def test_worker_in_each_dtype_answers_a_chat_with_a_picture_and_a_clip_aloud(worker: str) -> None:
    clip = duplex(second(0)).audio
    content = [pb.Content(image=PICTURE), pb.Content(audio=clip), pb.Content(text="What is it?")]
    question = pb.ChatMessage(role=pb.ROLE_USER, content=content)
    turn = pb.TurnInput(messages=[question], tts=pb.TtsConfig(enabled=True))
    sampling = common.SamplingParams(max_new_tokens=12, temperature=0.0)
    (answer,) = await visit(worker, [turn], mode=pb.SESSION_MODE_CHAT, seed=1, sampling=sampling)

    assert answer.done.end in (pb.UNIT_END_TURN, pb.UNIT_END_CHUNK)
    assert answer.text
    assert len(sound([answer])) > 0
    assert np.isfinite(sound([answer])).all()
