"""Utterances for the evaluation of transcription, in held-out voices, and their word errors."""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum

import grpc.aio
import numpy as np
from numpy.typing import NDArray

from antiphon.v1 import inference_service_pb2 as pb
from antiphon_training.corpus.voices import SAMPLE_RATE, flite_voice, held_out_voice
from antiphon_training.domains.domain import Split
from antiphon_training.domains.mini import Intent, draw
from benchmarks.quality.session import UnitByUnit, sound

_PER_SESSION = 5
_CHUNK = SAMPLE_RATE // 4


class DictationCondition(StrEnum):
    """The source of the utterances of a row in the table of transcriptions."""

    UNSEEN = "transcription: unseen voices"
    FLITE_SLT = "transcription: flite slt"


@dataclass(frozen=True)
class Utterance:
    """A sentence and its sound, float32 at 16 kHz."""

    intent: Intent
    words: list[str]
    pcm: NDArray[np.float32]


@dataclass
class Errors:
    """The number of spoken words, and of inserted, deleted and substituted ones."""

    words: int = 0
    wrong: int = 0

    @property
    def rate(self) -> float:
        """The word error rate."""
        return self.wrong / max(1, self.words)


@dataclass
class Written:
    """Errors by intent, and every utterance that was not transcribed exactly."""

    by_intent: dict[Intent, Errors] = field(default_factory=lambda: defaultdict(Errors))
    wrong: list[tuple[str, str]] = field(default_factory=list)
    utterances: int = 0

    def total(self, *, in_domain: bool) -> Errors:
        """Return the errors in the sentences of the domain, or in those outside it."""
        total = Errors()
        for intent, errors in self.by_intent.items():
            if (intent is not Intent.OUT_OF_DOMAIN) == in_domain:
                total.words += errors.words
                total.wrong += errors.wrong
        return total

    def add(self, utterance: Utterance, text: str) -> None:
        """Count one utterance."""
        said = text.split()
        errors = self.by_intent[utterance.intent]
        errors.words += len(utterance.words)
        errors.wrong += distance(utterance.words, said)
        self.utterances += 1
        if said != utterance.words:
            self.wrong.append((" ".join(utterance.words), " ".join(said)))


def distance(expected: list[str], said: list[str]) -> int:
    """Return the least number of word insertions, deletions and substitutions."""
    row = list(range(len(said) + 1))
    for i, word in enumerate(expected, 1):
        above, row = row, [i]
        for j, other in enumerate(said, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (word != other)))
    return row[-1]


def sessions(condition: DictationCondition, utterances: int, seed: int) -> list[list[Utterance]]:
    """Return sessions with at least `utterances` utterances in sum, uniform over the intents."""
    rng = random.Random(f"{seed} {condition}")
    rounds = -(-utterances // len(Intent))
    said = [
        _say(condition, rng, intent)
        for _ in range(rounds)
        for intent in rng.sample(list(Intent), len(Intent))
    ]
    return [said[i : i + _PER_SESSION] for i in range(0, len(said), _PER_SESSION)]


def _say(condition: DictationCondition, rng: random.Random, intent: Intent) -> Utterance:
    """Return a sentence in weak noise, with up to a second of noise before and after it."""
    sentence = draw(rng, Split.HELD_OUT, intent).question
    voice = flite_voice(rng, "slt") if condition is DictationCondition.FLITE_SLT else held_out_voice(rng)
    pcm = voice.say(sentence) * np.float32(10 ** rng.uniform(-0.6, 0.1))
    loudness = float(np.sqrt(np.mean(pcm**2)))
    pcm = np.pad(pcm, [rng.randrange(SAMPLE_RATE) for _ in range(2)])
    noise = np.random.default_rng(rng.randrange(1 << 30)).standard_normal(len(pcm)).astype(np.float32)
    pcm = (pcm + noise * loudness * 10 ** (-rng.uniform(25, 45) / 20)).clip(-1, 1)
    return Utterance(intent, sentence.split(), pcm.astype(np.float32))


async def dictate(channel: grpc.aio.Channel, utterances: list[Utterance], seed: int) -> list[str]:
    """Return the transcript of each utterance, sent in chunks of a quarter second."""
    session = UnitByUnit(channel)
    await session.open(pb.SessionConfig(mode=pb.SESSION_MODE_TRANSCRIBE, seed=seed))
    texts = []
    for utterance in utterances:
        text = ""
        for at in range(0, len(utterance.pcm), _CHUNK):
            chunk = pb.StreamInput(
                audio=sound(utterance.pcm[at : at + _CHUNK]),
                begin_utterance=at == 0,
                end_utterance=at + _CHUNK >= len(utterance.pcm),
            )
            text += (await session.play(pb.PrefillRequest(stream=chunk))).text
        texts.append(text)
    await session.close()
    return texts
