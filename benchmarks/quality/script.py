"""Full-duplex sessions for the evaluation: held-out voices and sentences, and the right replies."""

import random
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from antiphon_training.corpus.composition import FRAMES, onset_unit
from antiphon_training.corpus.voices import SAMPLE_RATE, flite_voice, held_out_voice
from antiphon_training.domains.domain import Exchange, Split
from antiphon_training.domains.mini import SPOKEN_INTENTS, Intent, draw
from benchmarks.quality import people
from benchmarks.quality.camera import Camera
from inference_service.models.pacing import chunks

SEED = 7_102_026
"""The seed of all draws; it was fixed before the checkpoint was trained."""
_HOP = SAMPLE_RATE // FRAMES
_FIRST_UNIT = 3
"""The number of units at the start that the default config forces to listen."""


class Condition(StrEnum):
    """The condition of a row in the table."""

    PLAIN = "plain"
    PAUSES = "pauses up to 20 s"
    THIRD_MINUTE = "third minute"
    FLITE_SLT = "flite slt"
    PEOPLE = "a person"
    CAMERA = "camera on"
    VISION = "vision"

    @property
    def intents(self) -> tuple[Intent, ...]:
        """The intents of the questions; with the camera on, the same as in the rows without a camera."""
        match self:
            case Condition.VISION:
                return (Intent.VISION,)
            case Condition.PEOPLE:
                return people.INTENTS
            case _:
                return SPOKEN_INTENTS


@dataclass(frozen=True)
class Question:
    """One question of a session: its first unit, the right reply and the unit of its onset."""

    exchange: Exchange
    first_unit: int
    onset: int
    """The unit in which the reply should begin: the first one with 0.3 s after the question's end."""
    measured: bool

    @property
    def reply_units(self) -> int:
        """The number of units of the reply."""
        return len(chunks(self.exchange.reply))


@dataclass
class Script:
    """One session: float32 sound at 16 kHz in whole seconds, its questions in order, and its pictures.

    `frames` holds the encoded pictures of each unit, and is empty for a session without a camera.
    """

    pcm: NDArray[np.float32]
    questions: list[Question] = field(default_factory=list)
    frames: list[tuple[bytes, ...]] = field(default_factory=list)

    @property
    def units(self) -> int:
        """The number of units, of one second each."""
        return len(self.pcm) // SAMPLE_RATE


def _gap(rng: random.Random, condition: Condition) -> float:
    if condition is Condition.PAUSES:
        return rng.uniform(5.0, 20.0)
    return rng.uniform(0.3, 2.5)


def write_script(rng: random.Random, condition: Condition, intents: list[Intent]) -> Script:
    """Return a session with one measured question of each intent.

    `THIRD_MINUTE` has two minutes of other questions before them. With a camera, the scene sometimes changes,
    at the latest in the unit in which a reply begins.
    """
    camera = Camera(rng) if condition in (Condition.CAMERA, Condition.VISION) else None
    sounds: list[tuple[int, NDArray[np.float32]]] = []
    questions: list[Question] = []
    at = rng.uniform(1.5, 5.0)

    def ask(intent: Intent, measured: bool) -> float:
        exchange, spoken = spoken_question(rng, condition, intent)
        pcm = spoken * np.float32(10 ** rng.uniform(-0.6, 0.1))
        begin = round(at * SAMPLE_RATE)
        end_frame = -(-(begin + len(pcm)) // _HOP)
        onset = max(_FIRST_UNIT, onset_unit(end_frame))
        sounds.append((begin, pcm))
        if camera is not None:
            exchange = watched(camera, rng, exchange, onset)
        questions.append(Question(exchange, begin // SAMPLE_RATE, onset, measured))
        return onset + questions[-1].reply_units + _gap(rng, condition)

    if condition is Condition.THIRD_MINUTE:
        while at < 120:
            at = ask(rng.choice(SPOKEN_INTENTS), measured=False)
    for intent in intents:
        if intent is Intent.VISION and rng.random() < 0.3:
            at = ask(rng.choice(SPOKEN_INTENTS), measured=False)
        at = ask(intent, measured=True)
    length = (int(at) + 1) * SAMPLE_RATE
    pcm = np.zeros(length, np.float32)
    for begin, sound in sounds:
        pcm[begin : begin + len(sound)] += sound[: length - begin]
    loudness = float(np.sqrt(np.mean(np.concatenate([sound for _, sound in sounds]) ** 2)))
    noise = np.random.default_rng(rng.randrange(1 << 30)).standard_normal(length).astype(np.float32)
    pcm = (pcm + noise * loudness * 10 ** (-rng.uniform(25, 45) / 20)).clip(-1, 1)
    if camera is not None:
        camera.roll(len(pcm) // SAMPLE_RATE)
    return Script(pcm, questions, camera.frames if camera else [])


def spoken_question(
    rng: random.Random, condition: Condition, intent: Intent
) -> tuple[Exchange, NDArray[np.float32]]:
    """Draw a question and its sound: mono float32 at 16 kHz."""
    if condition is Condition.PEOPLE:
        return people.question(rng, intent)
    exchange = draw(rng, Split.HELD_OUT, intent)
    voice = flite_voice(rng, "slt") if condition is Condition.FLITE_SLT else held_out_voice(rng)
    return exchange, voice.say(exchange.question)


def watched(camera: Camera, rng: random.Random, exchange: Exchange, onset: int) -> Exchange:
    """Add pictures up to the end of the reply; a vision question is about the newest one at its onset."""
    if rng.random() < 0.75:
        camera.roll(rng.randint(min(len(camera.frames), onset), onset))
        camera.change()
    camera.roll(onset + 1)
    if exchange.intent is Intent.VISION:
        exchange = replace(exchange, reply=camera.seen.reply)
    camera.roll(onset + len(chunks(exchange.reply)))
    return exchange


def scripts(condition: Condition, questions: int, seed: int) -> list[Script]:
    """Return sessions with at least `questions` measured questions, uniform over the intents."""
    rng = random.Random(f"{seed} {condition}")
    intents = condition.intents
    rounds = -(-questions // len(intents))
    asked = [intent for _ in range(rounds) for intent in rng.sample(intents, len(intents))]
    per_session = len(SPOKEN_INTENTS) // 2
    return [
        write_script(rng, condition, asked[i : i + per_session]) for i in range(0, len(asked), per_session)
    ]
