"""Pictures over the wire: what VIDEO sessions may send with a unit, and what becomes of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.engine.engine import LiveEngine
from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Deliver, ModelInfo, OnFatal
from inference_service.interface.setups import Mode
from inference_service.options import WorkerOptions
from inference_service.rpc.messages import replies
from tests.inference_service.conftest import Served, SessionOf
from tests.inference_service.engine.support import tiny
from tests.inference_service.support.caller import Caller, channel_to, duplex
from tests.support.drawing import encoded, jpeg, picture
from tests.support.scripted_engine import INFO, ScriptedEngine, listen, running_worker

SEEING = replace(INFO, sees=True, modes=frozenset({Mode.AUDIO, Mode.VIDEO}))
VIDEO = pb.SESSION_MODE_VIDEO
MARKS = 2


def unit(*frames: bytes, **fields: Any) -> pb.DuplexInput:
    """A silent unit with pictures."""
    content = duplex()
    content.frames.extend(common.Image(data=frame) for frame in frames)
    content.MergeFrom(pb.DuplexInput(**fields))
    return content


def live_engine(options: WorkerOptions, deliver: Deliver, on_fatal: OnFatal) -> LiveEngine:
    return LiveEngine(
        DuplexRuntime(antiphon_mini.components(*tiny.model(sees=True)), 2), 2, deliver, on_fatal
    )


@asynccontextmanager
async def video_session() -> AsyncIterator[Caller]:
    """A VIDEO session with a tiny model that sees."""
    async with running_worker(live_engine) as worker, channel_to(worker.address) as channel:
        caller = await Caller(channel).ready(mode=VIDEO)
        yield caller


@pytest.mark.parametrize(
    ("info", "modes"), [(INFO, [pb.SESSION_MODE_AUDIO]), (SEEING, [pb.SESSION_MODE_AUDIO, VIDEO])]
)
def test_a_worker_names_video_if_its_model_sees(info: ModelInfo, modes: list[int]) -> None:
    assert list(replies.model_info(info).modes) == modes


async def test_video_is_unsupported_by_a_model_that_does_not_see(served: Served) -> None:
    async with served(ScriptedEngine()) as new_caller:
        caller = await new_caller().open()
        await caller.send_config(mode=VIDEO)
        end = await caller.end()
        assert (end.code, end.reason) == (grpc.StatusCode.UNIMPLEMENTED, "MODE_UNSUPPORTED")


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
    ("content", "reason", "field"),
    [
        (unit(*[jpeg()] * 5), "IMAGE_INVALID", "duplex.frames"),
        (unit(jpeg(), max_slice_nums=0), "PARAMS_INVALID", "duplex.max_slice_nums"),
        (unit(jpeg(), max_slice_nums=10), "PARAMS_INVALID", "duplex.max_slice_nums"),
        (pb.DuplexInput(frames=[common.Image(data=jpeg())]), "AUDIO_INVALID", "duplex.audio"),
    ],
)
async def test_units_refused_before_the_engine(
    session_of: SessionOf, content: pb.DuplexInput, reason: str, field: str
) -> None:
    engine = ScriptedEngine(info=SEEING)
    async with session_of(engine, mode=VIDEO) as caller:
        refused = await caller.unit(1, content)
        following = await caller.unit(2, unit(jpeg()))
        assert (refused.prefill.error.reason, refused.prefill.error.field) == (reason, field)
        assert refused.done.end == pb.UNIT_END_FAILED
        assert following.done.end == pb.UNIT_END_LISTEN
        assert list(engine.session.seen) == [2]


async def test_pictures_in_an_audio_session_are_refused(session_of: SessionOf) -> None:
    async with session_of(ScriptedEngine(info=SEEING)) as caller:
        refused = await caller.unit(1, unit(jpeg()))
        following = await caller.unit(2)
        assert refused.prefill.error.reason == "CONTENT_UNSUPPORTED"
        assert refused.prefill.error.field == "duplex.frames"
        assert following.done.end == pb.UNIT_END_LISTEN


async def test_slices_and_vision_tokens_are_counted() -> None:
    async with video_session() as video:
        first = await video.unit(1, unit(jpeg("red"), encoded(picture(), "PNG"), encoded(picture(), "WEBP")))
        second = await video.unit(2)
        usage = first.prefill.prefilled.usage
        assert first.prefill.prefilled.vision_slices == 3
        assert usage.input_vision_tokens == 3 * tiny.PICTURE_TOKENS
        assert usage.input_text_tokens == 1 + 3 * MARKS
        assert second.prefill.prefilled.vision_slices == 0
        assert second.finalize.session_usage.input_vision_tokens == 3 * tiny.PICTURE_TOKENS


async def test_pictures_take_room_in_the_context() -> None:
    async with video_session() as video:
        first = await video.unit(1, force_listen=True)
        second = await video.unit(2, unit(jpeg()), force_listen=True)
        before, after = first.finalize.context_tokens, second.prefill.prefilled.context_tokens
        assert after - before == 1 + tiny.PICTURE_TOKENS + MARKS + 10


@pytest.mark.parametrize(
    ("frames", "bad"),
    [
        ((b"",), 0),
        ((b"not a picture",), 0),
        ((jpeg(), jpeg()[:500]), 1),
        ((jpeg(), jpeg(), encoded(picture(), "GIF")), 2),
        ((jpeg() + bytes(1 << 20),), 0),
    ],
)
async def test_bad_picture_fails_its_unit_and_the_session_goes_on(
    frames: tuple[bytes, ...], bad: int
) -> None:
    async with video_session() as video:
        before = await video.unit(1, unit(jpeg()), force_listen=True)
        refused = await video.unit(2, unit(*frames))
        following = await video.unit(3, unit(jpeg()), force_listen=True)
        error = refused.prefill.error
        assert (error.reason, error.field) == ("IMAGE_INVALID", f"duplex.frames[{bad}]")
        assert not error.retryable
        assert refused.done.end == pb.UNIT_END_FAILED
        assert refused.done.error.reason == "IMAGE_INVALID"
        assert refused.finalize.context_tokens == before.finalize.context_tokens
        assert following.done.end == pb.UNIT_END_LISTEN


async def test_units_written_ahead_of_a_bad_picture_are_answered_in_order() -> None:
    async with video_session() as video:
        await video.send_unit(1, unit(b"not a picture"))
        await video.send_unit(2, unit(jpeg()), force_listen=True)
        first, second = await video.answers(1), await video.answers(2)
        assert first.done.end == pb.UNIT_END_FAILED
        assert second.done.end == pb.UNIT_END_LISTEN
