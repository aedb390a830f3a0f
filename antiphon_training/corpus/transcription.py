"""Utterances to write down: what has been said in each second of composed sound.

A word belongs to the unit in which it has ended with at least 0.2 s to spare. After its last utterance a
session has a whole second in which that holds, of noise or, as a client that ends an utterance leaves it,
of nothing at all.
"""

import math
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from antiphon_training.corpus.augment import Augmenter, Power
from antiphon_training.corpus.composition import FRAMES
from antiphon_training.corpus.recipe import TRANSCRIPTION_PROMPT
from antiphon_training.corpus.spoken import Utterance
from antiphon_training.corpus.writing import Row, Writer
from antiphon_training.domains.domain import Domain
from inference_service.media.mel import BANDS, log_mel

SPARE = 20
"""Frames between the end of a word and the end of the unit in which it is written."""
CHUNK_END = "<|chunk_eos|>"


@dataclass
class Dictation:
    """Log-mel [100 * units, 80] and the words to be written in each unit."""

    mel: NDArray[np.float32]
    units: list[list[str]]


def writing_unit(end_frame: int) -> int:
    """Return the unit in which a word that ends at `end_frame` is written."""
    return max(0, math.ceil((end_frame + SPARE) / FRAMES) - 1)


class Dictator:
    """A source of random dictations from a corpus and its word ends (`alignment`).

    The same seed draws the same.
    """

    def __init__(
        self, domain: Domain, corpus: list[Utterance], ends: list[list[int]], augmenter: Augmenter
    ) -> None:
        self._corpus = list(zip(corpus, ends, strict=True))
        self._weights = list(accumulate(domain.dictated.get(u.exchange.intent, 1.0) for u in corpus))
        self._a = augmenter

    def _gap(self) -> int:
        rng = self._a.rng
        kind = rng.random()
        if kind < 0.45:
            return rng.randint(5, 60)
        return rng.randint(60, 250) if kind < 0.85 else rng.randint(250, 1200)

    def dictation(self, target_units: int) -> Dictation:
        """About `target_units` seconds of utterances and pauses, now and then of noise alone."""
        rng = self._a.rng
        spoken: list[tuple[int, Power]] = []
        words: list[tuple[int, str]] = []
        at = rng.randint(0, 120) if rng.random() < 0.7 else rng.randint(0, 600)
        silent = rng.random() < 0.05
        end = 0
        while not silent and at < (target_units - 1) * FRAMES:
            utterance, ends = rng.choices(self._corpus, cum_weights=self._weights)[0]
            speech = self._a.speech(utterance.power)
            scale = len(speech) / len(utterance.power)
            for word, word_end in zip(utterance.exchange.question.split(), ends, strict=True):
                words.append((writing_unit(at + round(word_end * scale)), word))
            spoken.append((at, speech))
            end = at + len(speech)
            at = end + self._gap()
        units = max(target_units, -(-end // FRAMES) + 1)
        written: list[list[str]] = [[] for _ in range(units)]
        for unit, word in words:
            written[unit].append(word)
        return Dictation(self._mix(units * FRAMES, spoken, end), written)

    def _mix(self, frames: int, spoken: list[tuple[int, Power]], end: int) -> NDArray[np.float32]:
        rng = self._a.rng
        power = np.zeros((frames, BANDS), np.float32)
        for at, speech in spoken:
            power[at : at + len(speech)] += speech
        reference = float(np.mean([s.mean() for _, s in spoken])) if spoken else 10 ** rng.uniform(-4, 1)
        if rng.random() < 0.12:
            return log_mel(power)
        noise = self._a.noise(frames, reference)
        if rng.random() < 0.5:
            noise[end + rng.randint(0, 30) :] = 0
        return log_mel(power + noise)


def dictated(writer: Writer, dictation: Dictation) -> Row:
    """Return the sequence of a transcription session."""
    row = Row()
    row.add(writer.template(TRANSCRIPTION_PROMPT))
    row.sounds.append(dictation.mel)
    for words in dictation.units:
        row.add(writer.encode("<unit>"))
        row.hear(len(dictation.mel) // len(dictation.units))
        row.decide([token for word in words for token in writer.encode(f" {word}")])
        row.decide(writer.encode(CHUNK_END))
        row.add(writer.encode("</unit>"))
    return row
