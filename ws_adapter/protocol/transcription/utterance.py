"""Utterances: audio in, text out. Audio is int16, mono, 16 kHz."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ws_adapter.protocol.core.blobs import Blobs, ByteQueue, Saved
from ws_adapter.protocol.transcription.commands import Rejection
from ws_adapter.protocol.transcription.events import Code, Done, Usage
from ws_adapter.protocol.transcription.saved import SavedUtterance, SavedUtterances

BYTES_PER_S: Final = 2 * 16_000

SEGMENT_BYTES: Final = BYTES_PER_S
"""The bytes of a segment, one second."""

SEGMENT_WAIT_S: Final = 1.0
"""The seconds after which an incomplete segment is sent to the worker."""

LARGEST_BYTES: Final = 4 * BYTES_PER_S
"""The most bytes of a segment after a backlog: a worker has to process one within 10 s."""

MOST_AHEAD: Final = 1000
"""The most utterances that may be committed ahead. Their audio is bounded, but they may be empty."""


@dataclass(slots=True)
class Utterance:
    """The audio between a `commit` and the final `commit`."""

    model: str
    audio: ByteQueue
    """Audio that is not at the worker yet."""
    waiting_since: float
    """The time since which the next segment waits."""
    is_ended: bool = False
    """Whether no more audio comes."""
    is_timed_out: bool = False
    """Whether it was ended by the idle limit."""
    first_unit: int = 0
    last_unit: int = 0
    """The number of its last unit at the worker; 0 before the first."""
    sampled_tokens: int = 0
    _said: ByteQueue = field(default_factory=ByteQueue)
    """The words up to now, in UTF-8."""

    @property
    def text(self) -> str:
        """All words up to now."""
        return self._said.all.decode()

    def say(self, text: str) -> None:
        """Append words."""
        self._said.put(text.encode())

    def save(self, now: float, blobs: Blobs) -> SavedUtterance:
        """Return the state."""
        return SavedUtterance(
            self.model,
            self.audio.save(blobs),
            now - self.waiting_since,
            self.is_ended,
            self.is_timed_out,
            self.first_unit,
            self.last_unit,
            self.sampled_tokens,
            self._said.save(blobs),
        )

    @classmethod
    def restored(cls, saved: SavedUtterance, blobs: Saved, now: float) -> "Utterance":
        """Return an utterance from a saved state. Raises `ValueError` or `KeyError`."""
        return cls(
            saved.model,
            ByteQueue.restored(saved.audio, blobs),
            now - saved.waiting_ago,
            saved.is_ended,
            saved.is_timed_out,
            saved.first_unit,
            saved.last_unit,
            saved.sampled_tokens,
            ByteQueue.restored(saved.said, blobs),
        )

    @property
    def has_begun(self) -> bool:
        """Whether the worker has got a part of it."""
        return self.first_unit > 0

    @property
    def is_empty(self) -> bool:
        """Whether it is complete and holds no audio."""
        return self.is_ended and not self.audio and not self.has_begun

    def holds(self, unit: int) -> bool:
        """Return whether `unit` at the worker belongs to this utterance, not to an earlier one."""
        return 0 < self.first_unit <= unit

    def hear(self, pcm: bytes, now: float) -> None:
        """Append audio."""
        if not self.audio:
            self.waiting_since = now
        self.audio.put(pcm)

    def next_segment_at(self) -> float | None:
        """Return the earliest time of the next segment for the worker; None while no audio waits."""
        if self.last_unit:
            return None
        if self.is_ended or len(self.audio) >= SEGMENT_BYTES:
            return self.waiting_since
        return self.waiting_since + SEGMENT_WAIT_S if self.audio else None

    def take_segment(self, unit: int, now: float) -> bytes:
        """Take the audio of `unit`, perhaps none."""
        segment = self.audio.take(LARGEST_BYTES)
        self.waiting_since = now
        self.first_unit = self.first_unit or unit
        if self.is_ended and not self.audio:
            self.last_unit = unit
        return segment

    def done(self, prompt_tokens: int) -> Done:
        """Return the final event; a model reads `prompt_tokens` in the first step of every utterance."""
        given = prompt_tokens if self.has_begun else 0
        usage = Usage(
            prompt_tokens=given,
            total_tokens=given + self.sampled_tokens,
            completion_tokens=self.sampled_tokens,
            prompt_tokens_details=None,
            completion_tokens_details=None,
        )
        return Done(text=self.text, usage=usage)


class Utterances:
    """A client's audio in order: the `current` utterance, those committed behind it, and audio after the last
    final commit, which is kept for the next one.

    `buffer_s` bounds the waiting audio, in seconds.
    """

    def __init__(self, buffer_s: float) -> None:
        self.current: Utterance | None = None
        self.waiting_bytes = 0
        self._buffer_s = buffer_s
        self._model: str | None = None
        self._kept = ByteQueue()
        self._ahead: deque[Utterance] = deque()
        self._is_skipping = False

    @property
    def _open(self) -> Utterance | None:
        """The utterance that takes new audio."""
        last = self._ahead[-1] if self._ahead else self.current
        return last if last is not None and not last.is_ended else None

    # ------------------------------------------------------------------------------------ the client

    def choose(self, model: str) -> None:
        """Choose the model of later utterances."""
        self._model = model

    def hear(self, pcm: bytes, now: float) -> None:
        """Take audio. Raises `Rejection`."""
        if self._is_skipping:
            return
        if self.waiting_bytes + len(pcm) > self._buffer_s * BYTES_PER_S:
            message = (
                f"at most {self._buffer_s:g} s of audio may wait; commit it, or wait for text, and send again"
            )
            raise Rejection(Code.BUFFER_FULL, message)
        self.waiting_bytes += len(pcm)
        if self._open is not None:
            self._open.hear(pcm, now)
        else:
            self._kept.put(pcm)

    def commit(self, now: float, *, is_final: bool) -> bool:
        """Begin or end an utterance; False if there is none to begin or to end. Raises `Rejection`."""
        if self._model is None:
            message = "no model is chosen yet; send session.update with a model first"
            raise Rejection(Code.MODEL_NOT_VALIDATED, message)
        if self._open is not None:
            self._open.is_ended = is_final
            return is_final
        if is_final and not self._kept:
            self._is_skipping = False
            return False
        if len(self._ahead) >= MOST_AHEAD:
            message = f"at most {MOST_AHEAD} utterances may wait; wait for some to be done and commit again"
            raise Rejection(Code.BUFFER_FULL, message)
        self._is_skipping = False
        self._ahead.append(Utterance(self._model, self._kept, now, is_ended=is_final))
        self._kept = ByteQueue()
        return True

    # ------------------------------------------------------------------------------------- the state

    def save(self, now: float, blobs: Blobs) -> SavedUtterances:
        """Return the state."""
        return SavedUtterances(
            self.current.save(now, blobs) if self.current is not None else None,
            tuple(utterance.save(now, blobs) for utterance in self._ahead),
            self._model,
            self._kept.save(blobs),
            self._is_skipping,
        )

    def restore(self, saved: SavedUtterances, blobs: Saved, now: float) -> None:
        """Go on from a saved state. Raises `ValueError` or `KeyError`."""
        if saved.current is not None:
            self.current = Utterance.restored(saved.current, blobs, now)
        self._ahead = deque(Utterance.restored(utterance, blobs, now) for utterance in saved.ahead)
        self._model, self._is_skipping = saved.model, saved.is_skipping
        self._kept = ByteQueue.restored(saved.kept, blobs)
        held = [self._kept, *(utterance.audio for utterance in self._ahead)]
        self.waiting_bytes = sum(map(len, held)) + (len(self.current.audio) if self.current else 0)

    # --------------------------------------------------------------------------------- the utterances

    def begin_next(self) -> Utterance | None:
        """Make the next utterance the current one."""
        self.current = self._ahead.popleft() if self._ahead else None
        return self.current

    def take_segment(self, unit: int, now: float) -> bytes:
        """Take the audio of `unit` from the current utterance."""
        assert self.current is not None
        segment = self.current.take_segment(unit, now)
        self.waiting_bytes -= len(segment)
        return segment

    def finish(self) -> Utterance:
        """End the current utterance, complete or not, and return it."""
        assert self.current is not None
        over, self.current = self.current, None
        self.waiting_bytes -= len(over.audio)
        return over

    def fail(self) -> None:
        """Drop the current utterance and its remaining input."""
        self._is_skipping = not self.finish().is_ended

    def put_back(self) -> None:
        """Return the audio of the current utterance, which was not begun, to the front of the queue."""
        assert self.current is not None
        unheard, self.current = self.current, None
        if self._ahead:
            unheard.audio.extend(self._ahead[0].audio)
            self._ahead[0].audio = unheard.audio
        else:
            unheard.audio.extend(self._kept)
            self._kept = unheard.audio


def as_floats(pcm: bytes) -> bytes:
    """Return little-endian int16 as little-endian float32 in [-1, 1]."""
    return (np.frombuffer(pcm, "<i2").astype("<f4") / np.float32(32768)).tobytes()
