"""Turn detection by the server (`server_vad`): the start and end of the user's speech."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from ws_adapter.protocol.core.speech import RATE_HZ, WINDOW, SpeechEdges, Started
from ws_adapter.protocol.realtime_ga.input_buffer import MOST_S, InputBuffer
from ws_adapter.protocol.realtime_ga.saved.session import SavedListening
from ws_adapter.protocol.realtime_ga.wire.fields import ServerVad
from ws_adapter.protocol.wire.codec import Samples

LONGEST_S: Final = MOST_S - 30.0
"""The most seconds of speech without a pause: longer speech becomes several turns."""

_REACH: Final = RATE_HZ // 2
"""The latest samples that may turn out to be the beginning of speech."""


class SpeechBegan(Struct, frozen=True):
    """The user speaks; the turn begins at position `at` in the buffer, its padding included."""

    at: int


class SpeechEnded(Struct, frozen=True):
    """The user has stopped speaking; the turn ends at `at`, after the silence that ended the speech."""

    at: int


class Listening:
    """Turn detection from one position in the buffer on, with one set of settings."""

    def __init__(self, vad: ServerVad, buffer: InputBuffer) -> None:
        self.vad = vad
        self.is_speech = False
        """Whether the user speaks."""
        self._buffer = buffer
        self._start(buffer.end)

    def save(self) -> SavedListening:
        """Return the state."""
        return SavedListening(self.vad, self.is_speech, self._edges.save(), self._from, self._heard)

    @classmethod
    def restored(cls, saved: SavedListening, buffer: InputBuffer) -> "Listening":
        """Return turn detection from a saved state; the detector still has to score `unscored`."""
        made = cls(saved.vad, buffer)
        made._edges.restore(saved.edges)
        made.is_speech, made._from, made._heard = saved.is_speech, saved.since, saved.heard
        return made

    @property
    def unscored(self) -> Samples:
        """The samples without a score, which a new detector gets first."""
        return self._buffer.samples[max(0, self._heard - self._buffer.begin) :]

    def detects_as(self, vad: ServerVad) -> bool:
        """Return whether other settings detect speech equally, so that detection can continue."""
        own, other = ((one.threshold, one.silence_duration_ms) for one in (self.vad, vad))
        return own == other

    def _start(self, at: int) -> None:
        assert self.vad.threshold is not None
        assert self.vad.silence_duration_ms is not None
        self._edges = SpeechEdges(self.vad.threshold, self.vad.silence_duration_ms)
        self._from = self._heard = at

    def hear(self, scores: Sequence[float]) -> list[SpeechBegan | SpeechEnded]:
        """Return the edges in the next windows with these scores; the buffer drops samples without further
        use."""
        assert self.vad.prefix_padding_ms is not None
        padding = self.vad.prefix_padding_ms * RATE_HZ // 1000
        told: list[SpeechBegan | SpeechEnded] = []
        self._heard += len(scores) * WINDOW
        for edge in self._edges.hear(scores):
            self.is_speech = isinstance(edge, Started)
            if isinstance(edge, Started):
                told.append(SpeechBegan(max(self._buffer.begin, self._from + edge.at - padding)))
            else:
                told.append(SpeechEnded(self._from + edge.known_at))
        if not self.is_speech:
            if not told:
                self._buffer.forget(self._heard - padding - _REACH)
        elif self._heard - self._buffer.begin > LONGEST_S * RATE_HZ:
            told.append(SpeechEnded(self._heard))
            self.is_speech = False
            self._start(self._heard)
        return told
