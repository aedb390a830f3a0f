"""Training data for transcription: composed sound, and the words to write in each second of it.

A word is written in the first unit that continues for at least 0.2 s after the word. After the last utterance
a session has one more unit. It holds noise, or zeros like the padding after a client has ended an utterance.
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
"""The least number of frames from the end of a word to the end of the unit in which it is written."""
CHUNK_END = "<|chunk_eos|>"


@dataclass
class Dictation:
    """A transcription session: log-mel [100 * units, 80] and the words to write in each unit."""

    mel: NDArray[np.float32]
    units: list[list[str]]


def writing_unit(end_frame: int) -> int:
    """Return the unit in which a word that ends at `end_frame` is written."""
    return max(0, math.ceil((end_frame + SPARE) / FRAMES) - 1)


class DictationComposer:
    """A composer of random dictations from a corpus and its word ends, in frames (`alignment`).

    The same augmenter seed gives the same dictations.
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
        """Compose about `target_units` seconds of utterances and pauses, in 5 % of the cases noise alone."""
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


def dictation_row(writer: Writer, dictation: Dictation) -> Row:
    """Return the training row of a transcription session."""
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
