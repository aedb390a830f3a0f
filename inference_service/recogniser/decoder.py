"""Recognition with pocketsphinx and a grammar: the words, and how well the sound fits them."""

import math
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLE_RATE = 16_000
GRAMMAR = "grammar.jsgf"
"""The grammar file of a checkpoint."""
FRAMES_PER_SECOND = 100
_LEAST = 1e-300
"""Smallest likelihood: pocketsphinx gives likelihoods as plain numbers, and those of long words may
underflow.
"""
_GRAMMAR_WEIGHT = 2.0
"""Weight of the grammar's own probabilities: with 6.5, the default, rare words fell out of the beams."""
_WORD_INSERTION_PENALTY = 1e-4
"""Word insertion penalty, as a factor of the probability. With 0.65, the default, an eight or a two was
inserted between digits.
"""
_SPOKEN = {"goodbye": ("G IH D B AY",)}
"""Pronunciations that are not in the dictionary."""
_WORD = re.compile(r"[a-z']+")
_NAME = re.compile(r"<[^>]*>|/[^/]*/|#JSGF.*?;|grammar \w+;|public")


@dataclass(frozen=True)
class Recognised:
    """The likeliest sentence of the grammar in a piece of sound."""

    words: tuple[str, ...]
    fit: float
    """Log-likelihood of the words per frame of 10 ms, relative to the likeliest of all sounds; 0 is
    the best.
    """
    worst_fit: float
    """The same for the word with the worst fit."""
    is_complete: bool
    """Whether the words are a whole sentence of the grammar."""
    spoken_s: float
    """Seconds that the words take."""


def vocabulary(grammar: str) -> list[str]:
    """Return the words of a JSGF grammar."""
    return sorted(set(_WORD.findall(_NAME.sub(" ", grammar))))


class Recogniser:
    """A decoder of one grammar. It takes one piece of sound at a time, and keeps none."""

    def __init__(self, grammar: str) -> None:
        """Create a decoder of a JSGF grammar. Raises `ValueError` for a word that is not in the
        dictionary.
        """
        from pocketsphinx import Config, Decoder, get_model_path

        model = Path(get_model_path()) / "en-us"
        with tempfile.NamedTemporaryFile("w", suffix=".dict") as dictionary:
            # The whole dictionary takes 30 MB in each decoder.
            dictionary.write("".join(_pronounced(model / "cmudict-en-us.dict", vocabulary(grammar))))
            dictionary.flush()
            config = Config(
                hmm=str(model / "en-us"), dict=dictionary.name, samprate=float(SAMPLE_RATE), lm=None,
                beam=1e-36, pbeam=1e-36, wbeam=1e-20, lw=_GRAMMAR_WEIGHT, wip=_WORD_INSERTION_PENALTY,
                compallsen=True, loglevel="FATAL",
            )  # fmt: skip
            self._decoder: Any = Decoder(config)
        self._decoder.add_jsgf_string("grammar", grammar)
        self._decoder.activate_search("grammar")
        self._sentences = self._decoder.get_fsg("grammar")

    def recognise(self, sound: bytes) -> Recognised | None:
        """Return the likeliest sentence in 16 kHz PCM16; None if there is none of the grammar."""
        decoder = self._decoder
        decoder.start_utt()
        decoder.process_raw(sound, full_utt=True)
        decoder.end_utt()
        segments = [
            (s.word.split("(")[0], math.log(max(s.ascore, _LEAST)), s.end_frame - s.start_frame + 1)
            for s in decoder.seg() or ()
        ]
        words = [segment for segment in segments if segment[0][0] not in "<["]
        if not words:
            return None
        spoken = sum(frames for _, _, frames in words)
        text = tuple(word for word, _, _ in words)
        return Recognised(
            text,
            sum(fit for _, fit, _ in words) / spoken,
            min(fit / frames for _, fit, frames in words),
            bool(self._sentences.accept(" ".join(text))),
            spoken / FRAMES_PER_SECOND,
        )


def _pronounced(dictionary: Path, words: list[str]) -> list[str]:
    """Return the dictionary's lines for some words, and the extra pronunciations.

    Raises `ValueError` for a word that is not in the dictionary.
    """
    wanted, found, lines = set(words), set(), []
    for line in dictionary.read_text().splitlines(keepends=True):
        word = line.split(" ", 1)[0].split("(")[0]
        if word in wanted:
            found.add(word)
            lines.append(line)
    for word in sorted(wanted & _SPOKEN.keys()):
        lines += [f"{word}({n}) {phones}\n" for n, phones in enumerate(_SPOKEN[word], 2)]
    if missing := wanted - found:
        raise ValueError(f"The pronouncing dictionary has no {', '.join(sorted(missing))}.")
    return lines
