"""Pictures over the wire: what VIDEO sessions may send with a unit, and what becomes of it."""

from dataclasses import replace
from typing import Any

import pytest

from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.interface.engine import ModelInfo
from inference_service.interface.setups import Mode
from inference_service.rpc.messages import replies
from tests.inference_service.conftest import Served, SessionOf
from tests.inference_service.support.caller import duplex
from tests.support.drawing import jpeg
from tests.support.scripted_engine import INFO, ScriptedEngine, listen

SEEING = replace(INFO, sees=True, modes=frozenset({Mode.AUDIO, Mode.VIDEO}))
VIDEO = pb.SESSION_MODE_VIDEO


def unit(*frames: bytes, **fields: Any) -> pb.DuplexInput:
    content = duplex()
    content.frames.extend(common.Image(data=frame) for frame in frames)
    content.MergeFrom(pb.DuplexInput(**fields))
    return content


@pytest.mark.parametrize(
    ("info", "modes"), [(INFO, [pb.SESSION_MODE_AUDIO]), (SEEING, [pb.SESSION_MODE_AUDIO, VIDEO])]
)
def test_a_worker_names_video_if_its_model_sees(info: ModelInfo, modes: list[int]) -> None:
    assert list(replies.model_info(info).modes) == modes


async def test_video_session_needs_no_pictures(served: Served) -> None:
    async with served(ScriptedEngine(info=SEEING)) as new_caller:
        caller = await new_caller().open()
        ready = await caller.configure(mode=VIDEO)
        answers = await caller.unit(1)
        assert ready.effective.mode == VIDEO
        assert answers.prefill.prefilled.vision_slices == 0
        assert answers.done.end == pb.UNIT_END_LISTEN


async def test_pictures_reach_the_engine_as_they_were_sent(session_of: SessionOf) -> None:
    engine = ScriptedEngine(listen(), info=SEEING)
    async with session_of(engine, mode=VIDEO) as caller:
        await caller.unit(1, unit(b"first", b"second", max_slice_nums=9))
        assert engine.session.duplex.sees
        assert engine.session.seen[1] == (b"first", b"second")


@pytest.mark.parametrize(
    ("mode", "content", "reason", "field"),
    [
        (VIDEO, unit(jpeg(), max_slice_nums=0), "PARAMS_INVALID", "duplex.max_slice_nums"),
        (VIDEO, unit(jpeg(), max_slice_nums=10), "PARAMS_INVALID", "duplex.max_slice_nums"),
        (VIDEO, pb.DuplexInput(frames=[common.Image(data=jpeg())]), "AUDIO_INVALID", "duplex.audio"),
        (pb.SESSION_MODE_AUDIO, unit(jpeg()), "CONTENT_UNSUPPORTED", "duplex.frames"),
    ],
)
async def test_units_refused_before_the_engine(
    session_of: SessionOf, mode: pb.SessionMode, content: pb.DuplexInput, reason: str, field: str
) -> None:
    engine = ScriptedEngine(info=SEEING)
    async with session_of(engine, mode=mode) as caller:
        refused = await caller.unit(1, content)
        following = await caller.unit(2)
        assert (refused.prefill.error.reason, refused.prefill.error.field) == (reason, field)
        assert refused.done.end == pb.UNIT_END_FAILED
        assert following.done.end == pb.UNIT_END_LISTEN
        assert list(engine.session.seen) == [2]
