"""Conversations to measure with: unheard voices, sentences never trained on, and what would be right."""

import random
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from inference_service.training.composition import FRAMES, onset_unit
from inference_service.training.domain import Exchange, Intent, Split, draw
from inference_service.training.pacing import chunks
from inference_service.training.voices import SAMPLE_RATE, flite_voice, held_out_voice

SEED = 7_102_026
"""Fixed before the checkpoint was trained."""
_HOP = SAMPLE_RATE // FRAMES
_FIRST_UNIT = 3
"""Units at the start that the public defaults force to listen."""


class Condition(StrEnum):
    """What a row of the table is measured under."""

    PLAIN = "plain"
    PAUSES = "pauses up to 20 s"
    THIRD_MINUTE = "third minute"
    FLITE_SLT = "flite slt"


@dataclass(frozen=True)
class Question:
    """One question of a session: the units of its sound, and the reply that belongs to it."""

    exchange: Exchange
    first_unit: int
    onset: int
    """The unit in which the reply should begin: the first with 0.3 s after the question's end."""
    measured: bool

    @property
    def reply_units(self) -> int:
        """Units that the reply takes."""
        return len(chunks(self.exchange.reply))


@dataclass
class Script:
    """One session: float32 sound at 16 kHz in whole seconds, and its questions in order."""

    pcm: NDArray[np.float32]
    questions: list[Question] = field(default_factory=list)

    @property
    def units(self) -> int:
        """Seconds of sound."""
        return len(self.pcm) // SAMPLE_RATE


def _gap(rng: random.Random, condition: Condition) -> float:
    if condition is Condition.PAUSES:
        return rng.uniform(5.0, 20.0)
    return rng.uniform(0.3, 2.5)


def write_script(rng: random.Random, condition: Condition, intents: list[Intent]) -> Script:
    """A session that asks one question of each intent; in the third minute, after two minutes of others."""
    sounds: list[tuple[int, NDArray[np.float32]]] = []
    questions: list[Question] = []
    at = rng.uniform(1.5, 5.0)

    def ask(intent: Intent, measured: bool) -> float:
        exchange = draw(rng, Split.HELD_OUT, intent)
        voice = flite_voice(rng, "slt") if condition is Condition.FLITE_SLT else held_out_voice(rng)
        pcm = voice.say(exchange.question) * np.float32(10 ** rng.uniform(-0.6, 0.1))
        begin = round(at * SAMPLE_RATE)
        end_frame = -(-(begin + len(pcm)) // _HOP)
        onset = max(_FIRST_UNIT, onset_unit(end_frame))
        sounds.append((begin, pcm))
        questions.append(Question(exchange, begin // SAMPLE_RATE, onset, measured))
        return onset + questions[-1].reply_units + _gap(rng, condition)

    if condition is Condition.THIRD_MINUTE:
        while at < 120:
            at = ask(rng.choice(list(Intent)), measured=False)
    for intent in intents:
        at = ask(intent, measured=True)
    length = (int(at) + 1) * SAMPLE_RATE
    pcm = np.zeros(length, np.float32)
    for begin, sound in sounds:
        pcm[begin : begin + len(sound)] += sound[: length - begin]
    loudness = float(np.sqrt(np.mean(np.concatenate([sound for _, sound in sounds]) ** 2)))
    noise = np.random.default_rng(rng.randrange(1 << 30)).standard_normal(length).astype(np.float32)
    return Script((pcm + noise * loudness * 10 ** (-rng.uniform(25, 45) / 20)).clip(-1, 1), questions)


def scripts(condition: Condition, questions: int, seed: int) -> list[Script]:
    """Sessions with at least `questions` measured questions, uniform over the intents."""
    rng = random.Random(f"{seed} {condition}")
    rounds = -(-questions // len(Intent))
    asked = [intent for _ in range(rounds) for intent in rng.sample(list(Intent), len(Intent))]
    per_session = len(Intent) // 2
    return [
        write_script(rng, condition, asked[i : i + per_session]) for i in range(0, len(asked), per_session)
    ]
