"""Start and end of speech from VAD scores: the probability of speech in each window of sound."""

from collections.abc import Iterable
from typing import Final, TypeAlias

from msgspec import Struct

RATE_HZ: Final = 16_000
"""The sample rate for VAD."""

WINDOW: Final = 512
"""The samples of a window, 32 ms."""

HYSTERESIS: Final = 0.15
"""Once speech has started, scores down to this much below the threshold still count as speech."""

_LEAST: Final = 0.01
"""The lowest score that counts as speech once speech has started."""

_GAP_MS: Final = 128
"""Longer silence discards the windows of speech before it, while speech has not started."""


class Started(Struct, frozen=True):
    """Speech starts at the sample `at` of the session; this is known after `known_at` samples."""

    at: int
    known_at: int


class Stopped(Struct, frozen=True):
    """Speech stops at the sample `at`; known after `known_at` samples, once the silence is long enough."""

    at: int
    known_at: int


Edge: TypeAlias = Started | Stopped


class SavedEdges(Struct, frozen=True):
    """The state of `SpeechEdges`."""

    speaks: bool
    end: int
    speech: int
    at: int
    silence: int


class SpeechEdges:
    """Start and end of speech from scores.

    A window with a score of `threshold` or more is speech. Speech starts after `speech_ms` of it, so that a
    click does not count, and stops after `silence_ms` without any.
    """

    def __init__(self, threshold: float = 0.5, silence_ms: float = 500.0, speech_ms: float = 96.0) -> None:
        self.speaks = False
        """Whether speech has started and not stopped."""
        self._starts_from = threshold
        self._goes_on_from = min(threshold, max(threshold - HYSTERESIS, _LEAST))
        self._most_silence = _windows(silence_ms)
        self._least_speech = _windows(speech_ms)
        self._end = 0
        """The number of scored samples."""
        self._speech = 0
        """The number of windows of speech so far, while speech has not started."""
        self._at = 0
        """The first sample of these windows."""
        self._silence = 0
        """The number of latest windows without speech."""

    def hear(self, scores: Iterable[float]) -> list[Edge]:
        """Return the edges that follow from these scores, in order; each score is of one more window."""
        edges: list[Edge] = []
        for score in scores:
            self._end += WINDOW
            if self.speaks:
                self._go_on(score, edges)
            else:
                self._wait(score, edges)
        return edges

    def save(self) -> SavedEdges:
        """Return the state."""
        return SavedEdges(self.speaks, self._end, self._speech, self._at, self._silence)

    def restore(self, saved: SavedEdges) -> None:
        """Go on from a saved state with the same settings."""
        self.speaks, self._end = saved.speaks, saved.end
        self._speech, self._at, self._silence = saved.speech, saved.at, saved.silence

    def _go_on(self, score: float, edges: list[Edge]) -> None:
        self._silence = 0 if score >= self._goes_on_from else self._silence + 1
        if self._silence >= self._most_silence:
            edges.append(Stopped(self._end - self._silence * WINDOW, self._end))
            self.speaks, self._speech = False, 0

    def _wait(self, score: float, edges: list[Edge]) -> None:
        if score >= self._starts_from:
            if not self._speech:
                self._at = self._end - WINDOW
            self._speech += 1
            self._silence = 0
        else:
            self._silence += 1
            if self._silence > _windows(_GAP_MS):
                self._speech = 0
        if self._speech >= self._least_speech:
            edges.append(Started(self._at, self._end))
            self.speaks, self._silence = True, 0


def _windows(ms: float) -> int:
    """Return the smallest number of windows that lasts at least `ms`."""
    return max(1, -(-round(ms * RATE_HZ / 1000) // WINDOW))
