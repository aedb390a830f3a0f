"""Start and end of speech from VAD scores: the probability of speech in each window of sound."""

from collections.abc import Iterable
from typing import Final, TypeAlias

from msgspec import Struct

RATE_HZ: Final = 16_000
"""Of what is detected in."""

WINDOW: Final = 512
"""Samples of a window, 32 ms."""

HYSTERESIS: Final = 0.15
"""So much below the threshold speech that has started goes on."""

_LEAST: Final = 0.01
"""What nobody takes for speech that goes on, however low the threshold."""

_GAP_MS: Final = 128
"""Longer silence makes what came before it no part of speech that starts."""


class Started(Struct, frozen=True):
    """Somebody speaks from the sample `at`, counted from the first ever; known when `known_at` were heard."""

    at: int
    known_at: int


class Stopped(Struct, frozen=True):
    """Nobody speaks from the sample `at`; known when `known_at` were heard, that silence among them."""

    at: int
    known_at: int


Edge: TypeAlias = Started | Stopped


class SavedEdges(Struct, frozen=True):
    """Hold the state of `SpeechEdges`."""

    speaks: bool
    end: int
    speech: int
    at: int
    silence: int


class SpeechEdges:
    """Makes edges of scores.

    A window is speech whose score is `threshold` or more. It takes `speech_ms` of it for speech to start, so
    that a click does not, and `silence_ms` without any for speech to stop.
    """

    def __init__(self, threshold: float = 0.5, silence_ms: float = 500.0, speech_ms: float = 96.0) -> None:
        self.speaks = False
        """Whether speech has started and not stopped."""
        self._starts_from = threshold
        self._goes_on_from = min(threshold, max(threshold - HYSTERESIS, _LEAST))
        self._most_silence = _windows(silence_ms)
        self._least_speech = _windows(speech_ms)
        self._end = 0
        """Samples heard."""
        self._speech = 0
        """Windows of speech that may start with them."""
        self._at = 0
        """Where the first of them is."""
        self._silence = 0
        """Windows without speech, up to now."""

    def hear(self, scores: Iterable[float]) -> list[Edge]:
        """Return the edges that these scores make known, in their order; each score is of one more window."""
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
    """Return how many windows last so long at least."""
    return max(1, -(-round(ms * RATE_HZ / 1000) // WINDOW))
