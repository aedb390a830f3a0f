"""The crowd's benchmarks hold the conversations that they say, and count what they hear."""

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.crowd import batching, workload
from benchmarks.crowd.conversations import Conversation, Tally, Unit, seconds_of_speech
from benchmarks.crowd.real_time import row
from benchmarks.crowd.scripted import script
from benchmarks.crowd.worker import Meter, Spent
from inference_service.checkpoints.location import find
from inference_service.engine.tick import Tick
from inference_service.families import table
from inference_service.interface.engine import Done, End, Piece
from inference_service.interface.setups import DuplexSettings, DuplexSetup, UnitInput, UnitOverrides
from inference_service.session.base.session import QueuedUnit
from tests.support.long import long


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield table.load(find("antiphon-mini"), torch.device("cpu"))(1)
    torch.set_num_threads(threads)


@torch.inference_mode()
@long
def test_scripted_sessions_say_six_words_and_a_whole_second_while_the_model_computes(runtime: Any) -> None:
    script(runtime)
    meter = Meter(runtime)
    setup = DuplexSetup("", DuplexSettings(force_listen_count=0), runtime.info.window, seed=1)
    first = workload.LISTENS - 1
    session = runtime.open(workload.name(first, 0), 0, setup, lambda event: None)
    session.preprocessor.begin()
    runtime.start(session)
    tick = Tick(runtime)
    for number, second in enumerate(seconds_of_speech()[: workload.CYCLE - first], start=1):
        heard = session.preprocessor.prepare(UnitInput(second))
        session.queue.prefill(
            QueuedUnit(number, heard, time.monotonic(), overrides=UnitOverrides(), finalize=True)
        )
        while tick.has_work([session]):
            tick.run([session])

    done = [event for event in session.events if isinstance(event, Done)]
    assert [one.end for one in done] == [End.LISTEN] + [End.CHUNK] * 15 + [End.TURN]
    assert [one.usage.output_audio_tokens for one in done] == [0] + [25] * 16
    said = [event for event in session.events if isinstance(event, Piece) and event.token_ids]
    assert [len(piece.token_ids) for piece in said] == [workload.SAYS] * 16
    sound = [event.audio for event in session.events if isinstance(event, Piece) and event.audio is not None]
    assert len(sound) == 16
    assert all(np.abs(samples).max() > 0 for samples in sound)
    assert meter.seconds > 0


def test_workload_listens_in_60_percent_of_its_units() -> None:
    spoken = [workload.speaks(workload.place(workload.name(7, 0), unit)) for unit in range(1, 401)]
    assert sum(spoken) == 160
    assert workload.place(Conversation(3, 39, [])._id, 2) == 0, "a conversation knows itself by its phase"


def test_units_that_are_answered_late_or_never_are_misses() -> None:
    units = [Unit(10.0, 10.1, 10.2), Unit(11.0, 11.5, 12.1), Unit(12.0)]
    units.append(Unit(13.0, 13.1, 13.4, words=6, codes=25))
    tally = Tally(2, units, Spent(2.0, 1.5, 1.0), seconds=4.0)
    assert tally.misses == 0.5
    assert math.isinf(tally.percentile_ms(0.99))
    assert row(tally, 1) == (2, 1, 4, 0.5, pytest.approx(1100), math.inf, 0.25, 6, 25, 0.5, 500, 0)


def test_crowd_with_failed_session_yields_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = batching.TokenStreams(batching.larger(), 2)
    assert crowd.run(2) > 0
    think = crowd._runtime.think

    def poisoned(segments: list[Any]) -> list[Any]:
        thought = zip(segments, think(segments), strict=True)
        return [None if segment.slot == 1 else hidden for segment, hidden in thought]

    monkeypatch.setattr(crowd._runtime, "think", poisoned)
    with pytest.raises(SystemExit, match="s-1 did not generate its 10 tokens"):
        crowd.run(2)
