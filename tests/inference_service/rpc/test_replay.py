"""Records of units over gRPC, and sessions that replay them."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.contract import Reason
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.checkpoints.folder import load_duplex
from inference_service.checkpoints.location import find
from inference_service.engine.engine import LiveEngine
from inference_service.interface.engine import Deliver, Engine, OnFatal
from inference_service.options import WorkerOptions
from inference_service.session.units import Stream
from tests.inference_service.conftest import Served
from tests.inference_service.engine.support.shipped import shipped, talk
from tests.inference_service.rpc.test_automatic_units import answers
from tests.inference_service.support.caller import Caller, channel_to, duplex
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import CONTINUING, ScriptedEngine, listen, running_worker

CONFIG: dict[str, Any] = {
    "automatic_units": True,
    "records": True,
    "seed": 5,
    "duplex": common.DuplexConfig(listen_prob_scale=0.0, force_listen_count=1),
}
"""Of a model that speaks in every unit in which it may."""


Said = tuple[pb.UnitDone, str, bytes]


def load(options: WorkerOptions, deliver: Deliver, on_fatal: OnFatal) -> Engine:
    """The shipped model behind a real engine."""
    return LiveEngine(shipped(), 2, deliver, on_fatal)


@asynccontextmanager
async def session(config: dict[str, Any], worker: Any = load) -> AsyncIterator[Caller]:
    """A session of a worker of its own, which ends in good order."""
    async with running_worker(worker) as running, channel_to(running.address) as channel:
        caller = await Caller(channel).open()
        ready = await caller.configure(**config)
        assert ready.effective.records
        yield caller
        await caller.leave()


def done_of(found: list[pb.GenerateResponse]) -> pb.UnitDone:
    (done,) = [answer.done for answer in found if answer.HasField("done")]
    return done


def text_of(found: list[pb.GenerateResponse]) -> str:
    return "".join(answer.text.text for answer in found)


async def heard(
    caller: Caller, unit: int, sound: np.ndarray[Any, Any], record: pb.UnitRecord | None = None
) -> Said:
    """Return the end, the words and the samples of a unit."""
    request = pb.PrefillRequest(unit=unit, duplex=duplex(sound), recorded=record)
    await caller.write(Stream.PREFILL, request)
    found = await answers(caller, unit)
    return done_of(found), text_of(found), b"".join(answer.audio.data for answer in found)


SECONDS = [sound.astype(np.float32) for sound in talk(random.Random(3), 9)]


async def said_by(caller: Caller, first: int = 1) -> list[Said]:
    """Return a session's answers to `SECONDS`, one unit each, from the `first` on."""
    return [await heard(caller, unit, sound) for unit, sound in enumerate(SECONDS[first - 1 :], first)]


def assert_alike(said: list[Said], expected: list[Said]) -> None:
    assert any(audio for *_, audio in expected)
    for (done, text, audio), (before, words, samples) in zip(said, expected, strict=True):
        assert (done.end, text) == (before.end, words)
        assert np.allclose(np.frombuffer(audio, "<f4"), np.frombuffer(samples, "<f4"), atol=1e-4)


async def test_another_worker_goes_on_with_the_words_and_samples_of_the_first() -> None:
    async with session(CONFIG) as caller:
        assert (await caller.settle()).replays_units
        expected = await said_by(caller)

    async with session(CONFIG) as caller:
        for unit, (before, *_) in enumerate(expected[:6], 1):
            done, text, audio = await heard(caller, unit, SECONDS[unit - 1], before.record)
            assert (done.end, text, audio) == (before.end, "", b"")
        assert_alike(await said_by(caller, 7), expected[6:])


async def test_neighbour_of_replaying_caller_answers_as_if_alone() -> None:
    silence, record = np.zeros(16_000, np.float32), pb.UnitRecord(end=pb.UNIT_END_LISTEN)
    replayed, enough = 0, asyncio.Event()

    async def replay(channel: Any) -> None:
        """Replay without a pause, in one session after another."""
        nonlocal replayed
        while True:
            caller = await Caller(channel).ready(**CONFIG)
            for unit in range(1, 41):
                done, _, _ = await heard(caller, unit, silence, record)
                assert done.end == pb.UNIT_END_LISTEN
                replayed += 1
                if replayed > 40:
                    enough.set()
            await caller.leave()

    async with running_worker(load) as worker, channel_to(worker.address) as channel:
        caller = await Caller(channel).ready(**CONFIG)
        alone = await said_by(caller)
        await caller.leave()
        replaying = asyncio.create_task(replay(channel))
        try:
            beside = await said_by(await Caller(channel).ready(**CONFIG))
            async with asyncio.timeout(PATIENCE_S):
                await enough.wait()
            assert not replaying.done(), "the replay itself goes on"
        finally:
            replaying.cancel()
            await asyncio.wait({replaying})
    assert_alike(beside, alone)


END_OF_MESSAGE = load_duplex(find("antiphon-mini"), torch.device("cpu"))[1].special.im_end
"""A control token of the shipped model."""

BAD = {
    "recorded.end": pb.UnitRecord(),
    "recorded.sampled_ids": pb.UnitRecord(end=pb.UNIT_END_CHUNK, sampled_ids=[2**31]),
    "recorded.speech_codes": pb.UnitRecord(end=pb.UNIT_END_CHUNK, speech_codes=[10**6]),
    "recorded.word_ids": pb.UnitRecord(end=pb.UNIT_END_LISTEN, word_ids=[2**31]),
    "recorded.text_draws": pb.UnitRecord(end=pb.UNIT_END_LISTEN, text_draws=2**63),
    "recorded": pb.UnitRecord(end=pb.UNIT_END_CHUNK, sampled_ids=[1] * 5000),
}
LONG = [
    ("recorded.sampled_ids", pb.UnitRecord(end=pb.UNIT_END_CHUNK, sampled_ids=[1] * 200)),
    ("recorded.speech_codes", pb.UnitRecord(end=pb.UNIT_END_CHUNK, speech_codes=[1] * 200)),
    ("recorded.word_ids", pb.UnitRecord(end=pb.UNIT_END_LISTEN, word_ids=[1] * 25)),
    ("recorded.word_ids", pb.UnitRecord(end=pb.UNIT_END_LISTEN, word_ids=[END_OF_MESSAGE])),
    ("recorded", pb.UnitRecord(end=pb.UNIT_END_TURN)),
]


async def test_bad_records_fail_their_units_and_the_session_goes_on() -> None:
    unit = 0
    async with session(CONFIG) as caller:
        for unit, (field, record) in enumerate([*BAD.items(), *LONG], 1):
            done, text, audio = await heard(caller, unit, np.zeros(16_000, np.float32), record)
            assert (done.end, done.error.field) == (pb.UNIT_END_FAILED, field)
            assert done.error.reason == Reason.PARAMS_INVALID
            assert (text, audio, done.HasField("record")) == ("", b"", False)
        done, _, _ = await heard(caller, unit + 1, np.zeros(16_000, np.float32))
        assert done.HasField("record")


@pytest.mark.parametrize("asked", [False, True])
async def test_session_without_records_refuses_a_recorded_unit(served: Served, asked: bool) -> None:
    async with served(ScriptedEngine(listen(), repeat=True)) as new_caller:
        caller = await new_caller().open()
        ready = await caller.configure(automatic_units=True, records=asked)
        assert not ready.effective.records
        done, _, _ = await heard(
            caller, 1, np.zeros(16_000, np.float32), pb.UnitRecord(end=pb.UNIT_END_LISTEN)
        )
        assert (done.end, done.error.reason) == (pb.UNIT_END_FAILED, Reason.CONTENT_UNSUPPORTED)
        assert (await heard(caller, 2, np.zeros(16_000, np.float32)))[0].end == pb.UNIT_END_LISTEN


async def answered(caller: Caller, record: pb.UnitRecord | None = None) -> list[pb.GenerateResponse]:
    content = [pb.Content(text="What can you do?")]
    turn = pb.TurnInput(messages=[pb.ChatMessage(role=pb.ROLE_USER, content=content)])
    run = pb.GenerateUnit(sampling=common.SamplingParams(temperature=1.2, max_new_tokens=24))
    await caller.write(Stream.PREFILL, pb.PrefillRequest(unit=1, turn=turn, run=run, recorded=record))
    return await answers(caller, 1)


CHAT: dict[str, Any] = {"mode": pb.SESSION_MODE_CHAT, "automatic_units": True, "records": True, "seed": 11}


async def test_another_worker_goes_on_with_an_answer_behind_its_last_word() -> None:
    async with session(CHAT) as caller:
        assert (await caller.settle()).replays_turns
        whole = await answered(caller)
    sampled = [token for each in whole for token in each.sampled_ids]
    half, told, known = len(sampled) // 2, "", 0
    assert half > 2
    for each in whole:
        if known + len(each.sampled_ids) > half:
            break
        known += len(each.sampled_ids)
        told += each.text.text

    async with session(CHAT) as caller:
        rest = await answered(caller, pb.UnitRecord(sampled_ids=sampled[:known]))
    assert told + text_of(rest) == text_of(whole)
    async with session(CHAT) as caller:
        refused = await answered(caller, pb.UnitRecord(sampled_ids=[END_OF_MESSAGE]))
    assert done_of(refused).error.field == "recorded.sampled_ids"
    done, done_before = done_of(rest), done_of(whole)
    assert (done.end, done.finish_reason) == (done_before.end, done_before.finish_reason)
    assert done.usage.output_text_tokens == done_before.usage.output_text_tokens
    assert done.usage.input_text_tokens == done_before.usage.input_text_tokens


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (pb.UnitRecord(end=pb.UNIT_END_TURN), "recorded.end"),
        (pb.UnitRecord(sampled_ids=[2**31]), "recorded.sampled_ids"),
        (pb.UnitRecord(sampled_ids=[1] * 100_000), "recorded.sampled_ids"),
        (pb.UnitRecord(speech_codes=[1]), "recorded.speech_codes"),
        (pb.UnitRecord(word_ids=[1]), "recorded.word_ids"),
    ],
)
async def test_beginning_of_an_answer_that_cannot_be_is_refused(record: pb.UnitRecord, field: str) -> None:
    async with session(CHAT, ScriptedEngine(listen(), info=CONTINUING)) as caller:
        assert done_of(await answered(caller, record)).error.field == field
