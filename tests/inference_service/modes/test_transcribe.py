"""TRANSCRIBE sessions over gRPC with real engines: the duplex model and Voxtral Realtime, tiny and random."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from antiphon.grpc import get_info
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.app import load_engine
from inference_service.families import table
from inference_service.interface.setups import Sampling
from tests.inference_service.engine.support import tiny, tiny_voxtral
from tests.inference_service.engine.support.dictation import Writer, cut, noise
from tests.inference_service.support.caller import Caller, channel_to, duplex
from tests.support.scripted_engine import running_worker

WINDOW = 8
"""Units in flight that a stream may have."""
FEW = Sampling(max_new_tokens=16, temperature=0.0)


@pytest.mark.parametrize("save", [tiny.save, tiny_voxtral.save], ids=["duplex", "voxtral"])
async def test_chunks_come_back_as_text_and_the_last_one_ends_the_turn(
    save: Callable[[Path], object], tmp_path: Path
) -> None:
    folder, sound = tmp_path / "model", noise(1, 3.3).clip(-1, 1)
    save(folder)
    chunks = [pb.StreamInput(audio=duplex(it).audio) for it in cut(sound, 1, 16_000) if len(it)]
    chunks[0].begin_utterance = True
    chunks.append(pb.StreamInput(end_utterance=True))
    answers = []
    async with (
        running_worker(load_engine, model=str(folder), slots=3) as worker,
        channel_to(worker.address) as channel,
    ):
        info = await get_info(worker.address)
        caller = await Caller(channel).open()
        sampling = common.SamplingParams(max_new_tokens=FEW.max_new_tokens)
        ready = await caller.configure(mode=pb.SESSION_MODE_TRANSCRIBE, sampling=sampling)
        for unit, chunk in enumerate(chunks, 1):
            if unit > WINDOW:
                answers.append(await caller.answers(unit - WINDOW))
            await caller.send_unit(unit, chunk)
        answers += [await caller.answers(unit) for unit in range(len(answers) + 1, len(chunks) + 1)]
        await caller.leave()
    assert pb.SESSION_MODE_TRANSCRIBE in info.modes
    assert info.input_sample_rate_hz == 16_000
    assert ready.prompt_tokens > 0
    assert ready.max_units_in_flight == WINDOW
    assert ready.effective.idle_timeout.seconds == 60 or not ready.effective.HasField("idle_timeout")
    ends = [answer.done.end for answer in answers]
    assert ends == [pb.UNIT_END_CHUNK] * (len(ends) - 1) + [pb.UNIT_END_TURN]
    with torch.inference_mode():
        alone = Writer(table.load(folder, torch.device("cpu"), None)(1), sampling=FEW)
        assert "".join(answer.text for answer in answers) == alone.write(sound, longest=16_000).text != ""
