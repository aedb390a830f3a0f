"""Utterances of one session: their beginning, their end, and the words of one that has ended.

Voice activity detection (VAD) finds where an utterance begins and when it is quiet. At the end of a unit that
has become quiet, the whole utterance is recognised from its beginning. So only its sound is kept, and a
silent session costs only the VAD.
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from inference_service.recogniser.decoder import SAMPLE_RATE, Recognised

_FRAME: Final = SAMPLE_RATE // 50
"""Samples of one VAD decision: 20 ms."""
_LEAD: Final = round(0.3 * SAMPLE_RATE)
"""Samples before the first voice that belong to an utterance."""
_TAIL: Final = round(0.3 * SAMPLE_RATE)
"""Samples after the last voice that belong to an utterance: more cost time, and shift the mean of the
cepstra.
"""
_OVERHANG_S: Final = 0.1
"""Seconds for which the VAD takes silence for voice, before and after an utterance."""
_QUIET: Final = round((0.3 - _OVERHANG_S) * SAMPLE_RATE)
"""Samples without a voice that end an utterance. With the overhang they last 0.3 s, after which an answer
begins. The model was not trained with words that come a unit earlier.
"""
_GIVEN_UP: Final = _QUIET + SAMPLE_RATE
"""Samples without a voice after which the answer has begun: later words would be answered a second time."""
LONGEST: Final = 6 * SAMPLE_RATE
"""Limit of samples of a recognised utterance."""
FIT: Final = -6.8
WORST_FIT: Final = -8.0
"""Lowest fit of the words, and of the worst word: sentences outside the grammar fit worse."""
LEAST_SHARE: Final = 0.65
"""Least share of the voiced time that the words must cover: few words may fit part of another sentence."""
LEAST_CONTRAST_DB: Final = 18.0
"""Least contrast in dB between loud and quiet parts of an utterance: in more noise, wrong words fit as well
as right ones.
"""


class Recogniser(Protocol):
    """Recognises words."""

    def start(self) -> None:
        """Prepare because speech has begun; does not wait."""

    def recognise(self, sound: bytes) -> Recognised | None:
        """Return the likeliest sentence in 16 kHz PCM16."""


@dataclass(frozen=True)
class Utterance:
    """An utterance that seems to have ended."""

    sound: NDArray[np.int16]
    """Sound at 16 kHz, [n]."""
    voiced_s: float
    """Seconds with a voice."""
    end: int
    """Sample of the stream at its end."""


class Utterances:
    """The utterances in one endless stream of sound.

    `follow` is cheap. `words` may take a tenth of the utterance's length, and may run in another thread.
    """

    def __init__(self, recogniser: Recogniser) -> None:
        """Start the recogniser, which should be ready at the end of the first utterance."""
        from pocketsphinx import Vad

        self._recogniser = recogniser
        recogniser.start()
        self._detector: Any = Vad(Vad.MEDIUM_STRICT, SAMPLE_RATE, _FRAME / SAMPLE_RATE)
        self._sound = np.zeros(0, np.int16)
        """The utterance so far, or its possible beginning."""
        self._at = 0
        """Samples of the stream up to the end of `_sound`."""
        self._voiced_to = 0
        """Sample of the stream at the end of the last voice; 0 if no utterance has begun."""
        self._voiced = 0
        """Samples of the utterance with a voice."""
        self._told_to = 0
        """Sample of the stream up to which words were returned."""
        self._is_too_long = False

    def follow(self, pcm: NDArray[np.float32]) -> Utterance | None:
        """Take the next unit, float32 [n] at 16 kHz; return an utterance that may have ended."""
        if self._told_to >= self._voiced_to:
            self._forget()
        self._find_voice((np.nan_to_num(np.clip(pcm, -1, 1)) * 32767).astype(np.int16))
        if not self._voiced_to:
            return None
        quiet = self._at - self._voiced_to
        if self._is_too_long or len(self._sound) > LONGEST:
            self._is_too_long = quiet < _GIVEN_UP
            self._sound = self._sound[-_LEAD:]
            if not self._is_too_long:
                self._forget()
            return None
        if quiet >= _GIVEN_UP:
            self._forget()
            return None
        if quiet < _QUIET or not _is_clear(self._sound):
            return None
        sound = self._sound[: len(self._sound) - max(0, quiet - _TAIL)]
        return Utterance(sound, self._voiced / SAMPLE_RATE, self._at)

    def words(self, utterance: Utterance) -> str:
        """Return the words of an utterance; empty if it has not ended, or was not understood."""
        heard = self._recogniser.recognise(utterance.sound.tobytes())
        if heard is None or not _is_sure(heard, utterance):
            return ""
        self.know(utterance)
        return " ".join(heard.words)

    def know(self, utterance: Utterance) -> None:
        """Note that the words of an utterance are known, so that none of it is recognised again."""
        self._told_to = utterance.end

    def _find_voice(self, sound: NDArray[np.int16]) -> None:
        """Add sound to the utterance, or to its possible beginning."""
        whole = np.concatenate([self._sound, sound])
        first, begins = self._at - len(self._sound), 0
        for at in range(len(self._sound), len(whole) - _FRAME + 1, _FRAME):
            if self._detector.is_speech(whole[at : at + _FRAME].tobytes()):
                if not self._voiced_to:
                    self._recogniser.start()
                    begins = max(0, at - _LEAD)
                self._voiced += _FRAME
                self._voiced_to = first + at + _FRAME
        self._at += len(sound)
        self._sound = whole[begins if self._voiced_to else -_LEAD :]

    def _forget(self) -> None:
        """Wait for the next utterance."""
        self._voiced_to, self._voiced, self._is_too_long = 0, 0, False
        self._sound = self._sound[-_LEAD:]


def _is_clear(sound: NDArray[np.int16]) -> bool:
    """Return whether speech stands out from the background between the words."""
    frames = sound[: len(sound) // _FRAME * _FRAME].reshape(-1, _FRAME).astype(np.float32)
    quiet, loud = np.percentile((frames**2).mean(1), (10, 90))
    return bool(loud >= (quiet + 1.0) * 10 ** (LEAST_CONTRAST_DB / 10))


def _is_sure(heard: Recognised, utterance: Utterance) -> bool:
    """Return whether a sentence is complete, has a good fit, and covers the utterance."""
    is_all = heard.spoken_s >= LEAST_SHARE * (utterance.voiced_s - 2 * _OVERHANG_S)
    return heard.is_complete and is_all and heard.fit >= FIT and heard.worst_fit >= WORST_FIT
