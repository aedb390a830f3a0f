"""Kernels that a step launches at the published depth: budgets that keep a tick short of launches."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.full_size.sizes import FULL, TINY, Size
from inference_service.device import flex
from inference_service.device.paged import AttentionBackend
from inference_service.engine.batch import decoder
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.speech import SpeechJob, SpeechState
from inference_service.engine.tick import Tick
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.setups import DuplexSetup, UnitInput, UnitOverrides, Window
from inference_service.models.token2wav import seconds
from inference_service.session.base.session import QueuedUnit, Stage
from inference_service.session.kinds.components import SpeechCodes
from inference_service.session.kinds.duplex import DuplexSession
from tests.inference_service.device.fakes import DEVICE, MARKS, Fakes, duplex_runtime
from tests.inference_service.device.launches import Launches

pytestmark = MARKS
SECOND = np.zeros(16_000, np.float32)
SLOTS = 2


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return Fakes(monkeypatch)


@pytest.fixture
def runtime(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> DuplexRuntime:
    """MiniCPM-o at its published size. Fakes cannot be compiled, so one operator stands for FlexAttention."""
    as_on_a_card(monkeypatch)
    return duplex_runtime(fakes, FULL, SLOTS, 1024)


def as_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all rows attend in one call, for which one operator stands."""
    monkeypatch.setattr(
        decoder, "choose_backend", lambda *_: AttentionBackend("flex", "", flex.over_contexts, all_rows=True)
    )
    monkeypatch.setattr(flex, "attend", lambda queries, *others: torch.zeros_like(queries))


@pytest.fixture
def launches(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> Launches:
    """After `fakes`, whose stand-in for captured regions this one replaces."""
    return Launches(monkeypatch)


def opened(fakes: Fakes, runtime: DuplexRuntime, slot: int) -> DuplexSession:
    """Return a session that has begun and speaks as soon as it may."""
    settings = replace(runtime.info.duplex_defaults, force_listen_count=0)
    session = runtime.open("fake", slot, DuplexSetup("", settings, Window(), seed=slot), lambda event: None)
    assert isinstance(session, DuplexSession)
    session.preprocessor.begin()
    with fakes.on_device():
        assert runtime.start(session) is None
    return session


def second_for(session: DuplexSession) -> QueuedUnit:
    """Return a second of silence, prepared on the host."""
    heard = session.preprocessor.prepare(UnitInput(SECOND))
    return QueuedUnit(1, heard, 0.0, overrides=UnitOverrides(), finalize=True)


def report(what: str, launches: Launches, most: int) -> None:
    """Hold the launches against a budget; `pytest -s` prints them."""
    print(
        f"{what}: {launches.total} launches, {launches.regions} of them regions of "
        f"{launches.inside.total()} operators"
    )
    print(f"  {dict(launches.operators)}")
    assert launches.total <= most
    # On a card, its compiled form has ignored where a view begins.
    assert not {"searchsorted", "bucketize"} & {*launches.operators, *launches.inside}


@pytest.mark.parametrize(
    ("size", "crowd"), [(FULL, SLOTS), (TINY, 25)], ids=["two of the published size", "a tiny crowd"]
)
def test_tick_of_one_that_listens_and_others_that_speak_has_few_launches(
    fakes: Fakes, launches: Launches, monkeypatch: pytest.MonkeyPatch, size: Size, crowd: int
) -> None:
    """The usual tick of a crowd takes no more launches than that of two sessions."""
    as_on_a_card(monkeypatch)
    runtime = duplex_runtime(fakes, size, crowd, 1024)
    with fakes.on_device():
        runtime.components.ear.capture(crowd)
    *speaking, listens = (opened(fakes, runtime, slot) for slot in range(crowd))
    sessions, tick = [*speaking, listens], Tick(runtime, clock=lambda: 0.0)
    seconds = [second_for(session) for session in sessions]
    with fakes.on_device():
        while tick.has_work(sessions):
            tick.run(sessions)
        for session, second in zip(speaking, seconds, strict=False):
            session.queue.prefill(second)
        while not all(session.stage is Stage.DECODE for session in speaking):
            tick.run(sessions)
        listens.queue.prefill(seconds[-1])
        launches.clear()
        with launches:
            ticked = tick.run(sessions)

    assert ticked is not None
    assert ticked.sessions == crowd
    assert ticked.tokens > crowd - 2 + 10, "a token of each and a second of sound"
    report(f"a tick of one that listens and {crowd - 1} that speak", launches, 60)


@pytest.mark.long
def test_25_codes_have_few_launches(fakes: Fakes, runtime: DuplexRuntime, launches: Launches) -> None:
    assert runtime.speaker is not None
    with fakes.on_device():
        hidden = torch.zeros(6, FULL.config.language.hidden_size, dtype=torch.bfloat16, device=DEVICE)
        state = SpeechState(0, Noise(0))
        job = SpeechJob(*(state, [0] * 6, hidden), may_be_short=False, temperature=0.8, noise=state.noise)
        launches.clear()
        with launches:
            runtime.speaker.step([job])
    assert len(job.codes) == 25
    report("25 codes", launches, 64)


@pytest.mark.long
def test_second_of_sound_has_few_launches(
    fakes: Fakes, runtime: DuplexRuntime, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a turn goes on; what is left of it at its end is computed as it is."""
    speech = runtime.components.speech
    assert speech is not None
    monkeypatch.setattr(seconds, "BATCHES", (1,))
    with fakes.on_device():
        speech.mouth.capture()
        mouth = speech.mouth.initial_state(None, 0)
        for number in range(3):
            launches.clear()
            with launches:
                speech.mouth.say([SpeechCodes(mouth, [0] * 25, is_last=False)])
            report(f"second {number + 1} of a turn", launches, 12)


@pytest.mark.long
def test_second_in_the_ear_has_few_launches(fakes: Fakes, runtime: DuplexRuntime, launches: Launches) -> None:
    ear = runtime.components.ear
    with fakes.on_device():
        ear.capture(SLOTS)
        states = [ear.initial_state() for _ in range(SLOTS)]
        for frames in (102, 104):
            mels = [torch.zeros(80, frames, device=DEVICE) for _ in states]
            launches.clear()
            with launches:
                _, states = ear.encode(mels, states)
            report(f"{SLOTS} seconds of {frames} frames in the ear", launches, 16)
