"""Sentences in the voice slt, which was built from one woman's recordings, and the grammar that ships."""

import os
import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from antiphon.audio.wav import read_wav
from inference_service.checkpoints.location import find
from inference_service.engine.engine import LiveEngine
from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Ready
from inference_service.interface.setups import DuplexSetup, UnitInput, UnitOverrides, UnitRecord
from inference_service.recogniser import process as process_module
from inference_service.recogniser.decoder import GRAMMAR
from inference_service.recogniser.process import RecogniserProcess
from inference_service.session.kinds import duplex_kind
from tests.inference_service.engine.support import tiny
from tests.inference_service.engine.test_engine import Client, Rig, Slots
from tests.support.patience import PATIENCE_S

UNIT = 16_000
"""Samples of a unit."""
SPOKEN = Path(__file__).parents[2] / "data" / "recogniser"


def sentence(name: str, *, lead_s: float = 0.4, tail_s: float = 0.4) -> NDArray[np.float32]:
    """Return a recorded sentence between silences with a little noise, float32 at 16 kHz."""
    speech = read_wav(SPOKEN / f"{name}.wav")
    padded = np.pad(speech, (round(lead_s * 16_000), round(tail_s * 16_000)))
    return padded + np.random.default_rng(0).standard_normal(len(padded)).astype(np.float32) * np.float32(
        3e-4
    )


@pytest.fixture(scope="session")
def grammar() -> Path:
    return find("antiphon-mini") / GRAMMAR


def question() -> list[NDArray[np.float32]]:
    """Return a sum and a second of silence, in units."""
    spoken = sentence("sum", tail_s=1.0)
    return [spoken[at : at + UNIT] for at in range(0, len(spoken) - UNIT + 1, UNIT)]


@pytest.fixture
def recogniser(grammar: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecogniserProcess]:
    """Yield a recogniser that is ready, with timeouts for a busy machine."""
    monkeypatch.setattr(process_module, "READY_S", PATIENCE_S)
    monkeypatch.setattr(process_module, "ANSWER_S", PATIENCE_S)
    monkeypatch.setattr(duplex_kind, "_LATE_S", PATIENCE_S)
    made = RecogniserProcess(grammar)
    made.recognise(bytes(2 * UNIT))
    yield made
    made.close()


@contextmanager
def hanging(recogniser: RecogniserProcess) -> Iterator[None]:
    """Stop the process of a recogniser within the block."""
    assert recogniser._process is not None
    pid = recogniser._process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def slots(recogniser: RecogniserProcess) -> Iterator[Slots]:
    """Return the slots of an engine whose sessions have a recogniser."""
    fatal: queue.Queue[str] = queue.Queue()
    runtime = DuplexRuntime(antiphon_mini.components(*tiny.model(), recogniser), 2)
    engine = LiveEngine(runtime, 2, Rig._deliver, fatal.put)
    yield Slots(engine)
    engine.stop()
    assert fatal.empty()


def begin(slots: Slots, name: str, *, records: bool = False) -> Client:
    info = slots._engine.info
    setup = DuplexSetup("Be brief.", info.duplex_defaults, info.window, 1, records=records)
    client = slots.open(setup, name)
    client.until(Ready)
    return client


def say(client: Client, number: int, pcm: NDArray[np.float32], recorded: UnitRecord | None = None) -> None:
    """Send a unit to which the model listens; `recorded` is its outcome in a replay."""
    client.session.prefill(number, UnitInput(np.asarray(pcm, np.float32), recorded=recorded))
    client.session.generate(number, True, UnitOverrides())
    client.session.finalize(number)
