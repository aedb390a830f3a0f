"""The shipped model in company: each session says, token for token, what it says alone."""

import random
import wave
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from inference_service.checkpoints.folder import load_duplex
from inference_service.checkpoints.location import find
from inference_service.engine.tick import Tick
from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Done, End, Piece
from inference_service.interface.setups import DuplexSettings, DuplexSetup, UnitOverrides
from inference_service.media.mel import CONTEXT, SAMPLE_RATE, log_mel, mel_power
from inference_service.session.base.session import QueuedUnit, Stage
from inference_service.session.kinds.duplex import DuplexSession, PreparedInput
from tests.support.long import seeds

RECORDINGS = sorted((Path(__file__).parents[3] / "clients/recordings").glob("*.wav"))
SLOTS = 3
Sound = NDArray[np.float32]


@cache
def shipped() -> DuplexRuntime:
    """The shipped model with clean slots; whoever uses one leaves it clean."""
    model, tokenizer, config = load_duplex(find("antiphon-mini"), torch.device("cpu"))
    return DuplexRuntime(antiphon_mini.components(model, tokenizer, config), SLOTS)


def recorded(path: Path) -> Sound:
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels()) == (SAMPLE_RATE, 1)
        pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    return pcm.astype(np.float32) / np.float32(32768)


def talk(rng: random.Random, units: int) -> list[Sound]:
    """Questions, pauses and noise, cut into seconds wherever they fall."""
    parts: list[Sound] = []
    while sum(map(len, parts)) < units * SAMPLE_RATE:
        parts.append(np.zeros(rng.randrange(SAMPLE_RATE), np.float32))
        parts.append(recorded(rng.choice(RECORDINGS)) * np.float32(rng.uniform(0.4, 1.2)))
    sound = np.concatenate(parts)[: units * SAMPLE_RATE]
    noise = np.random.default_rng(rng.randrange(2**32)).standard_normal(len(sound)) * 10 ** rng.uniform(
        -4, -2
    )
    return np.split((sound + noise).astype(np.float32), units)


@dataclass
class Visit:
    """A session from its prompt to its last unit."""

    prompt: str
    settings: DuplexSettings
    seed: int
    seconds: list[Sound]
    units: int
    conversation: DuplexSession | None = None
    told: list[Piece] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    heard: Sound = field(default_factory=lambda: np.zeros(CONTEXT, np.float32))

    def enter(self, runtime: DuplexRuntime, slot: int) -> None:
        setup = DuplexSetup(self.prompt, self.settings, runtime.info.window, self.seed)
        self.conversation = runtime.open("visit", slot, setup, lambda event: None)
        assert runtime.start(self.conversation) is None

    def send(self) -> None:
        """Writes the next second ahead."""
        assert self.conversation
        pcm = self.seconds.pop(0)
        perceived = PreparedInput(torch.from_numpy(log_mel(mel_power(pcm, self.heard))))
        self.heard = pcm[-CONTEXT:]
        number = len(self.ends) + 1
        unit = QueuedUnit(number, perceived, 0.0, overrides=UnitOverrides(), finalize=True)
        self.conversation.queue.prefill(unit)

    def listen(self) -> None:
        """Takes what has been said since."""
        assert self.conversation
        for event in self.conversation.events:
            if isinstance(event, Piece):
                self.told.append(event)
            elif isinstance(event, Done):
                self.ends.append(event.end)
        self.conversation.events.clear()

    @property
    def is_idle(self) -> bool:
        """Whether it has no unit under way."""
        return (
            self.conversation is not None
            and self.conversation.stage is Stage.IDLE
            and self.conversation.queue.first is None
        )

    @property
    def is_over(self) -> bool:
        """Whether its last second has been answered."""
        return self.is_idle and not self.seconds and len(self.ends) == self.units

    @property
    def words(self) -> list[tuple[int, tuple[int, ...]]]:
        return [(piece.unit, piece.token_ids) for piece in self.told if piece.token_ids]

    @property
    def sound(self) -> Sound:
        return np.concatenate(
            [p.audio for p in self.told if p.audio is not None] or [np.zeros(0, np.float32)]
        )


def visits(seed: int, count: int) -> list[Visit]:
    rng = random.Random(seed)
    defaults = shipped().info.duplex_defaults
    return [
        Visit(
            rng.choice(["You are a helpful assistant.", "Answer briefly.", ""]),
            replace(defaults, force_listen_count=rng.choice([0, 0, 1]), temperature=rng.choice([0.7, 1.2])),
            rng.randrange(2**63),
            talk(rng, units),
            units,
        )
        for units in [rng.randint(5, 8) for _ in range(count)]
    ]


def play(
    waiting: list[Visit], rng: random.Random, slots: list[int], runtime: DuplexRuntime | None = None
) -> None:
    """Sessions join when a slot is free and chance wills, send their seconds at random, and leave."""
    runtime = runtime or shipped()
    tick = Tick(runtime, budget=rng.choice([16, 64, 1024]))
    free, present = list(slots), dict[int, Visit]()
    while waiting or present:
        if waiting and free and (not present or rng.random() < 0.1):
            slot = free.pop(rng.randrange(len(free)))
            present[slot] = waiting.pop(0)
            present[slot].enter(runtime, slot)
        for visit in present.values():
            if visit.is_idle and visit.seconds and rng.random() < 0.5:
                visit.send()
        tick.run([visit.conversation for visit in present.values() if visit.conversation])
        for slot, visit in list(present.items()):
            visit.listen()
            if visit.is_over:
                runtime.clear(slot)
                del present[slot]
                free.append(slot)


def assert_same(visit: Visit, expected: Visit) -> None:
    assert visit.ends == expected.ends
    assert visit.words == expected.words
    np.testing.assert_allclose(visit.sound, expected.sound, atol=1e-4)


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_sessions_that_come_and_go_say_what_they_say_alone(seed: int) -> None:
    together = visits(seed, 5)
    play(list(together), random.Random(seed), list(range(SLOTS)))
    for visit, own in zip(together, visits(seed, 5), strict=True):
        play([own], random.Random(0), [0])
        assert_same(visit, own)
    assert sum(len(visit.words) for visit in together) >= 5  # else there was little to compare


def test_session_in_a_used_slot_says_what_it_says_in_a_fresh_engine() -> None:
    model, tokenizer, config = load_duplex(find("antiphon-mini"), torch.device("cpu"))
    fresh = visits(3, 2)[1]
    play([fresh], random.Random(0), [0], DuplexRuntime(antiphon_mini.components(model, tokenizer, config), 1))
    first, second = visits(3, 2)
    play([first, second], random.Random(0), [0])
    assert first.sound.any()
    assert_same(second, fresh)
