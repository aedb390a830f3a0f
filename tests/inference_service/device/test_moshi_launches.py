"""Kernels that a frame of Moshi launches: paid for each tick, not for each session.

Decoders are as on a GPU, where the forward of each is one captured region, whatever its depth; the codec has
as many layers as the published one.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from inference_service.checkpoints.moshi.folder import load
from inference_service.device import flex
from inference_service.device.paged import AttentionBackend
from inference_service.engine.batch.decoder import PackedDecoder
from inference_service.engine.tick import Tick
from inference_service.families.moshi import runtime as moshi
from inference_service.families.moshi.runtime import MoshiRuntime
from inference_service.families.moshi.session import FrameSession
from inference_service.interface.setups import DuplexSetup, UnitFormat, UnitInput, UnitOverrides, Window
from inference_service.session.base.session import QueuedUnit
from tests.inference_service.device.launches import Launches
from tests.inference_service.engine.support import tiny_moshi

SLOTS = 8
NATIVE = UnitFormat(0.08, 24_000)
FRAME = np.zeros(1920, np.float32)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MoshiRuntime:
    """One operator stands for FlexAttention, which would have to be compiled."""
    backend = AttentionBackend("flex", "", flex.over_contexts, all_rows=True)
    monkeypatch.setattr(moshi, "PackedDecoder", partial(PackedDecoder, in_steps=True, backend=backend))
    monkeypatch.setattr(flex, "attend", lambda queries, *others: torch.zeros_like(queries))
    loaded = load(tiny_moshi.save(tmp_path / "tiny"), torch.device("cpu"), torch.float32)
    return MoshiRuntime(loaded, SLOTS)


def counted(runtime: MoshiRuntime, launches: Launches, count: int) -> int:
    """Return the launches of a tick in which so many sessions hear, think and say a frame."""
    settings = replace(runtime.info.duplex_defaults, force_listen_count=0)
    tick, sessions = Tick(runtime, clock=lambda: 0.0), list[FrameSession]()
    for slot in range(count):
        setup = DuplexSetup("", settings, Window(), seed=slot, format=NATIVE)
        session = runtime.open("counted", slot, setup, lambda events: None)
        assert isinstance(session, FrameSession)
        assert runtime.start(session) is None
        sessions.append(session)
    for number in (1, 2):
        while tick.has_work(sessions):
            tick.run(sessions)
        for session in sessions:
            heard = session.preprocessor.prepare(UnitInput(FRAME))
            unit = QueuedUnit(number, heard, 0.0, overrides=UnitOverrides(), finalize=True)
            session.queue.prefill(unit)
    launches.clear()
    with launches:
        ticked = tick.run(sessions)
    assert ticked is not None
    assert ticked.sessions == count
    assert all(session.running is None for session in sessions), "a tick is a whole frame"
    for session in sessions:
        session.leave()
        runtime.clear(session.slot)
    print(f"{count} sessions: {launches.total} launches, {launches.regions} of them regions")
    print(f"  {dict(launches.operators)}")
    return launches.total


def test_frame_has_few_launches_for_any_number_of_sessions(
    runtime: MoshiRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "by_rows", False)
    launches = Launches(monkeypatch)
    runtime.codes.capture(SLOTS, torch.zeros(1, runtime.language.backbone.config.hidden_size))
    alone = counted(runtime, launches, 1)
    assert launches.inside["topk"] == tiny_moshi.CODES, "the codes of a frame are one region"
    crowd = counted(runtime, launches, SLOTS)
    assert alone <= 200
    assert crowd <= alone + 8
