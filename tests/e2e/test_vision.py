"""The shipped model sees: the same spoken question gets the answer that fits the picture."""

import pytest

from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from tests.e2e.conftest import Recording
from tests.e2e.support.visit import visit
from tests.inference_service.support.caller import duplex
from tests.support.drawing import jpeg

SILENCE = 4


async def answer(worker: str, question: Recording, frames: list[bytes], mode: pb.SessionMode) -> str:
    units = [duplex(pcm) for pcm in question.units(SILENCE)]
    for unit in units:
        unit.frames.extend(common.Image(data=frame) for frame in frames)
    told = await visit(worker, units, mode=mode, seed=1)
    return " ".join("".join(it.text for it in told).split())


@pytest.fixture
def question(recordings: list[Recording]) -> Recording:
    return next(recording for recording in recordings if recording.name == "vision")


@pytest.mark.parametrize(
    ("colour", "shape"), [("red", "circle"), ("blue", "square"), ("yellow", "triangle"), ("black", "circle")]
)
@pytest.mark.sample("red-circle", "yellow-triangle")
async def test_answer_names_what_the_camera_shows(
    worker: str, question: Recording, colour: str, shape: str
) -> None:
    frames = [jpeg(colour, shape, (640, 480))]
    assert await answer(worker, question, frames, pb.SESSION_MODE_VIDEO) == f"i see a {colour} {shape}"


@pytest.mark.parametrize("mode", [pb.SESSION_MODE_VIDEO, pb.SESSION_MODE_AUDIO])
async def test_without_a_picture_it_says_that_it_sees_nothing(
    worker: str, question: Recording, mode: pb.SessionMode
) -> None:
    assert await answer(worker, question, [], mode) == question.reply


async def test_pictures_do_not_change_the_answer_to_other_questions(
    worker: str, recordings: list[Recording]
) -> None:
    other = next(recording for recording in recordings if recording.name == "goodbye")
    frames = [jpeg("red", "circle", (640, 480))]
    assert await answer(worker, other, frames, pb.SESSION_MODE_VIDEO) == other.reply
