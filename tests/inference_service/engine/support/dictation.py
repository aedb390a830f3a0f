"""Transcription sessions whose ticks the test runs itself, and their events."""

import time
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from inference_service.engine.runtime import Runtime
from inference_service.engine.tick import Tick
from inference_service.interface.engine import Done, Event, Failure, Finalized, Piece, Prefilled
from inference_service.interface.setups import Sampling, StreamInput, TranscribeSetup, UnitOverrides
from inference_service.session.base.session import QueuedUnit, Session

Sound = NDArray[np.float32]
SAMPLE_RATE = 16_000
GREEDY = Sampling(max_new_tokens=100_000, temperature=0.0)
E = TypeVar("E", bound=Event)


def noise(seed: int, seconds: float) -> Sound:
    """Noise whose loudness and colour change, so that no two frames are alike."""
    rng = np.random.default_rng(seed)
    samples = rng.standard_normal(round(seconds * SAMPLE_RATE))
    tones = np.sin(np.cumsum(rng.uniform(0.01, 1.5, len(samples) // 800 + 1).repeat(800)))[: len(samples)]
    loudness = rng.uniform(0.01, 0.4, len(samples) // 400 + 1).repeat(400)[: len(samples)]
    return ((0.3 * samples + tones) * loudness).astype(np.float32)


def cut(sound: Sound, seed: int, longest: int) -> list[Sound]:
    """`sound` in chunks of random lengths of up to `longest` samples, empty ones among them."""
    rng = np.random.default_rng(seed)
    chunks = []
    while len(sound):
        size = int(rng.integers(0, longest + 1))
        chunks.append(sound[:size])
        sound = sound[size:]
    return chunks


@dataclass
class Writer:
    """A session of `runtime` and its events."""

    runtime: Runtime
    slot: int = 0
    sampling: Sampling = GREEDY
    seed: int = 1
    events: list[Event] = field(default_factory=list)
    units: int = 0

    def __post_init__(self) -> None:
        setup = TranscribeSetup(self.sampling, self.seed)
        self.session: Session[Any] = self.runtime.open("writer", self.slot, setup, lambda event: None)
        self.refusal = self.runtime.start(self.session)

    def send(
        self,
        sound: Sound | None = None,
        *,
        begins: bool = False,
        ends: bool = False,
        failure: Failure | None = None,
        rejection: Failure | None = None,
        generate: bool = True,
        overrides: UnitOverrides | None = None,
    ) -> int:
        """Queue a unit; return its number."""
        self.units += 1
        prepared = None if failure else self.session.preprocessor.prepare(StreamInput(sound, begins, ends))
        unit: QueuedUnit[Any] = QueuedUnit(self.units, prepared, time.monotonic(), failure, finalize=True)
        self.session.queue.prefill(unit)
        if rejection is not None:
            self.session.queue.reject(self.units, rejection)
        elif generate:
            self.session.queue.generate(self.units, False, overrides or UnitOverrides())
        return self.units

    def collect(self) -> None:
        """Collect the new events of the session."""
        self.events += self.session.events
        self.session.events.clear()

    def run(self) -> "Writer":
        """Run ticks until no work is left."""
        run(self.runtime, [self])
        return self

    def write(self, sound: Sound, seed: int = 0, longest: int = 40_000) -> "Writer":
        """Transcribe a whole utterance, in chunks of random lengths."""
        for index, chunk in enumerate(cut(sound, seed, longest)):
            self.send(chunk, begins=index == 0)
        self.send(ends=True)
        return self.run()

    def of(self, kind: type[E], unit: int | None = None) -> list[E]:
        """The events of a kind, of all units or of one."""
        return [e for e in self.events if isinstance(e, kind) and unit in (None, getattr(e, "unit", None))]

    def done(self, unit: int) -> Done:
        """Return the `Done` of a unit; assert that it has one of each answer."""
        ((done,), (_,), (_,)) = self.of(Done, unit), self.of(Prefilled, unit), self.of(Finalized, unit)
        return done

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.of(Piece))

    @property
    def token_ids(self) -> list[int]:
        return [token for piece in self.of(Piece) for token in piece.token_ids]


def run(runtime: Runtime, writers: list[Writer], *, budget: int = 1024) -> None:
    """Run ticks for all `writers` until none has work."""
    tick = Tick(runtime, budget)
    sessions = [writer.session for writer in writers]
    for _ in range(100_000):
        for writer in writers:
            writer.collect()
        if not tick.has_work(sessions):
            return
        tick.run(sessions)
    raise AssertionError("the sessions never come to rest")
