"""The user's speech, cut out of the sound of a session for transcription."""

from collections import deque
from collections.abc import Iterable
from typing import Final

import numpy as np
from msgspec import Struct

from ws_adapter.protocol.core.blobs import Blobs, Saved, samples_of
from ws_adapter.protocol.core.speech import RATE_HZ, WINDOW, SavedEdges, SpeechEdges, Started
from ws_adapter.protocol.wire.codec import NO_AUDIO, Samples

PADDING: Final = RATE_HZ * 3 // 10
"""The samples before and after speech that belong to it."""

LONGEST: Final = RATE_HZ * 30
"""The samples of speech without a pause after which a piece is cut."""

_REACH: Final = RATE_HZ // 2
"""The latest samples that may turn out to be the beginning of speech."""

_GAP: Final = RATE_HZ * 2
"""The most samples of silence that replace a gap: enough to end any speech."""


class SpeechPiece(Struct, frozen=True):
    """A piece of speech, float32 at 16 kHz; it begins at `at_ms` on the timeline of the session."""

    at_ms: int
    audio: bytes


class SavedInputSpeech(Struct, frozen=True):
    """The state of an `InputSpeech`."""

    edges: SavedEdges
    held: tuple[int, ...]
    begin: int
    scored: int
    since: int | None
    skipped: int


class InputSpeech:
    """Segmentation of the user's speech into pieces. Each score is that of the next window of sound."""

    def __init__(self) -> None:
        self._edges = SpeechEdges()
        self._held: deque[Samples] = deque()
        self._begin = 0
        """The position of the first held sample, in samples."""
        self._end = 0
        self._scored = 0
        self._from: int | None = None
        """The position at which the open speech begins."""
        self._skipped = 0
        """The number of lost samples that no silence has replaced."""

    @property
    def held_bytes(self) -> int:
        """The bytes of held sound."""
        return 4 * (self._end - self._begin)

    def hear(self, samples: Samples) -> None:
        """Take more of the session's sound."""
        self._held.append(samples)
        self._end += samples.size

    def skip(self, size: int) -> Samples:
        """Skip `size` lost samples; return the silence that speech detection gets for them."""
        silence = np.zeros(min(size, _GAP), np.float32)
        self._skipped += size - silence.size
        return silence

    def detected(self, scores: Iterable[float]) -> list[SpeechPiece]:
        """Return the pieces of speech that end with these scores."""
        said: list[SpeechPiece] = []
        for score in scores:
            self._scored += WINDOW
            for edge in self._edges.hear([score]):
                if isinstance(edge, Started):
                    self._from = max(self._begin, edge.at - PADDING)
                else:
                    said += self._cut(edge.at + PADDING)
                    self._from = None
            if self._from is not None and self._scored - self._from >= LONGEST:
                said += self._cut(self._scored)
                self._from = self._scored
        if self._from is None:
            self._forget(self._scored - PADDING - _REACH)
        return said

    def save(self, blobs: Blobs) -> SavedInputSpeech:
        """Return the state."""
        return SavedInputSpeech(
            self._edges.save(),
            blobs.keep_all(self._held),
            self._begin,
            self._scored,
            self._from,
            self._skipped,
        )

    def restore(self, saved: SavedInputSpeech, blobs: Saved) -> None:
        """Go on from a saved state."""
        self._edges.restore(saved.edges)
        self._held = deque(samples_of(blobs, saved.held))
        self._begin, self._scored = saved.begin, saved.scored
        self._end = saved.begin + sum(held.size for held in self._held)
        self._from, self._skipped = saved.since, saved.skipped

    def _cut(self, end: int) -> list[SpeechPiece]:
        if self._from is None:
            return []
        self._forget(self._from)
        at_ms = (self._begin + self._skipped) * 1000 // RATE_HZ
        held = np.concatenate([NO_AUDIO.samples, *self._held])[: end - self._begin]
        self._forget(end)
        return [SpeechPiece(at_ms, held.astype("<f4", copy=False).tobytes())] if held.size else []

    def _forget(self, until: int) -> None:
        while self._held and self._begin < until:
            first = self._held.popleft()
            size = min(first.size, until - self._begin)
            self._begin += size
            if size < first.size:
                self._held.appendleft(first[size:])
