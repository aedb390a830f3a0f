"""A short evaluation of a trained model, with held-out sentences and voices.

Each session plays one question, directly to the engine. `benchmarks/quality` measures the shipped model in
depth, as a client of its worker.
"""

import queue
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from antiphon_training.corpus.composition import FRAMES, onset_unit
from antiphon_training.corpus.voices import SAMPLE_RATE, held_out_voice
from antiphon_training.domains.domain import Domain, Split
from inference_service.families.loading import load_engine
from inference_service.interface.engine import (
    Closed,
    Engine,
    Event,
    Finalized,
    Piece,
    SessionFailed,
    Sink,
)
from inference_service.interface.setups import NO_OVERRIDES, DuplexSetup, UnitInput
from inference_service.models.pacing import chunks
from inference_service.options import WorkerOptions

SEED: Final = 7_102_027
_LEAD_S: Final = (3.2, 4.5)
"""The range of seconds of silence before a question; in the first three units listening is forced."""
_NOISE_DB: Final = (25.0, 45.0)
"""The range of the level of speech above noise, in dB."""
_EVENT_TIMEOUT_S: Final = 120.0


@dataclass
class Tally:
    """The counts of an intent: questions, right answers, and answers in the right second."""

    asked: int = 0
    right: int = 0
    on_time: int = 0

    def add(self, right: bool, on_time: bool) -> None:
        """Count one question."""
        self.asked += 1
        self.right += right
        self.on_time += on_time


@dataclass
class Report:
    """The counts of all intents; its text is a table."""

    tallies: dict[str, Tally] = field(default_factory=dict)

    @property
    def total(self) -> Tally:
        """The sums over all intents."""
        found = self.tallies.values()
        return Tally(sum(t.asked for t in found), sum(t.right for t in found), sum(t.on_time for t in found))

    def __str__(self) -> str:
        width = max(map(len, [*self.tallies, "total"]))
        lines = ["", "Held-out sentences and voices:", f"{'':{width}}  asked  right  on time"]
        for name, tally in [*self.tallies.items(), ("total", self.total)]:
            shares = f"{tally.right / tally.asked:5.2f}  {tally.on_time / tally.asked:7.2f}"
            lines.append(f"{name:{width}}  {tally.asked:5d}  {shares}")
        return "\n".join(lines)


def evaluate(domain: Domain, folder: Path, questions: int) -> Report:
    """Ask the model of a checkpoint folder `questions` questions, uniformly over the domain's intents."""
    rng = random.Random(SEED)
    intents = [intent for _ in range(-(-questions // len(domain.intents))) for intent in domain.intents]
    report = Report({intent: Tally() for intent in domain.intents[:questions]})
    engine = load_engine(WorkerOptions(model=str(folder), slots=1), _deliver, _fail)
    try:
        for intent in tqdm(intents[:questions], desc="evaluation", disable=None):
            exchange = domain.draw(rng, Split.HELD_OUT, intent)
            units, onset = _units(rng, exchange.question, len(chunks(exchange.reply)))
            said, first = converse(engine, units)
            report.tallies[intent].add(said == exchange.reply, first == onset)
    finally:
        engine.stop()
    return report


def _units(rng: random.Random, question: str, answer_units: int) -> tuple[NDArray[np.float32], int]:
    """Return the audio of a session, float32 [units, 16000], and the unit in which the answer must begin."""
    voice = held_out_voice(rng).say(question)
    begin = round(rng.uniform(*_LEAD_S) * SAMPLE_RATE)
    onset = onset_unit(-(-(begin + len(voice)) * FRAMES // SAMPLE_RATE))
    pcm = np.zeros((onset + answer_units + 2) * SAMPLE_RATE, np.float32)
    pcm[begin : begin + len(voice)] = voice
    loudness = float(np.sqrt(np.mean(voice**2))) * 10 ** (-rng.uniform(*_NOISE_DB) / 20)
    noise = np.random.default_rng(rng.randrange(1 << 30)).standard_normal(len(pcm)).astype(np.float32)
    return (pcm + noise * np.float32(loudness)).clip(-1, 1).reshape(-1, SAMPLE_RATE), onset


def converse(engine: Engine, units: NDArray[np.float32]) -> tuple[str, int | None]:
    """Play a session of units [units, samples]; return the answer's text and the unit in which it begins.

    Raises RuntimeError if the session fails.
    """
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def put(told: Sequence[Event]) -> None:
        for event in told:
            events.put(event)

    info = engine.info
    session = engine.open("evaluation", 0, DuplexSetup("", info.duplex_defaults, info.window, SEED), put)
    for number, pcm in enumerate(units, 1):
        session.prefill(number, UnitInput(pcm))
        session.generate(number, False, NO_OVERRIDES)
        session.finalize(number)
    words, first = [], None
    while not isinstance(event := events.get(timeout=_EVENT_TIMEOUT_S), Closed):
        match event:
            case Piece(unit, text) if text.strip():
                words.append(text)
                first = unit - 1 if first is None else first
            case Finalized(unit) if unit == len(units):
                session.close()
            case SessionFailed(_, message):
                raise RuntimeError(f"the session failed: {message}")
    return " ".join("".join(words).split()), first


def _deliver(batch: list[tuple[Sink, Sequence[Event]]]) -> None:
    for sink, events in batch:
        sink(events)


def _fail(message: str) -> None:
    raise RuntimeError(message)
