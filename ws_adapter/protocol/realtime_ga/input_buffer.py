"""The input buffer: microphone audio that is in no item yet.

Positions in the buffer are samples of float32 at 16 kHz, counted from the first audio that was ever appended.
"""

from collections import deque
from typing import Final

import numpy as np

from ws_adapter.protocol.core.blobs import Blobs, Saved, samples_of
from ws_adapter.protocol.duplex.input import SECOND_S
from ws_adapter.protocol.live.sound import INPUT_RATE_HZ, Format, InputConverter
from ws_adapter.protocol.realtime_ga.saved.session import SavedBuffer, SavedReplay
from ws_adapter.protocol.realtime_ga.wire.events import Code
from ws_adapter.protocol.realtime_ga.wire.refusals import Denied
from ws_adapter.protocol.wire.codec import NO_AUDIO, Samples

LEAST_MS: Final = 100
"""The shortest audio that a client can commit."""

MOST_S: Final = 120.0
"""The most seconds of waiting audio."""


MOST_REPLAYED_S: Final = 30.0
"""The most seconds of unanswered speech that are replayed: the latest."""


class InputBuffer:
    """The buffer of audio in `format`, which it holds in the model's form: float32 at 16 kHz.

    `unit_s` is the length of a unit of the model.
    """

    def __init__(self, format: Format, unit_s: float = SECOND_S) -> None:
        self._unit_s = unit_s
        self.format = format
        self.begin = 0
        """The position of the first held sample."""
        self.end = 0
        """The position after the last one; up to 30 ms in the resampler are not included."""
        self._input_converter = InputConverter(format, unit_s)
        self._held: deque[Samples] = deque()
        self._bytes = 0.0
        """The size of the held audio in its appended format."""
        self._appended = 0

    def save(self, blobs: Blobs) -> SavedBuffer:
        """Return the state."""
        held = blobs.keep_all(self._held)
        return SavedBuffer(self.begin, self._input_converter.save(), held, self._bytes, self._appended)

    def restore(self, saved: SavedBuffer, blobs: Saved) -> None:
        """Go on from a saved state of the same format. Raises `ValueError` or `KeyError`."""
        self._input_converter.restore(saved.ear)
        self._held = deque(samples_of(blobs, saved.held))
        self.begin, self._bytes, self._appended = saved.begin, saved.bytes, saved.appended
        self.end = saved.begin + sum(held.size for held in self._held)

    @property
    def ms(self) -> float:
        """The duration of the held audio in ms, as it was appended."""
        return self._bytes * 1000 / self.format.bytes_per_s

    @property
    def held_bytes(self) -> int:
        """The bytes of held audio."""
        return 4 * (self.end - self.begin) + self._input_converter.waiting_bytes

    def check_room(self, size: int) -> None:
        """Raise `Refusal` if `size` more bytes exceed the bound."""
        if (self._bytes + size) / self.format.bytes_per_s > MOST_S:
            message = f"at most {MOST_S:g} s of audio may wait; commit or clear them"
            raise Denied(Code.BUFFER_FULL, message, "audio")

    def append(self, data: bytes) -> Samples:
        """Append audio, cut anywhere; return the samples that are available now."""
        self._bytes += len(data)
        self._appended += len(data)
        return self._hold(self._input_converter.hear(data))

    @property
    def samples(self) -> Samples:
        """All held samples that are available."""
        return np.concatenate([NO_AUDIO.samples, *self._held])

    def take(self, end: int) -> bytes:
        """Remove and return the held audio up to `end`, as float32 at 16 kHz."""
        samples = self.samples
        size = min(max(0, end - self.begin), samples.size)
        self.forget(end)
        data: bytes = samples[:size].astype("<f4", copy=False).tobytes()
        return data

    def take_whole(self) -> bytes:
        """Remove and return all held audio; the sound continues, so the resampler keeps its delay.

        Raises `Refusal` if it is too short.
        """
        self._check_length()
        return self.take(self.end)

    def take_all(self) -> bytes:
        """Remove and return all held audio, with the rest from the resampler: the sound ends here.

        Raises `Refusal` if it is too short.
        """
        self._check_length()
        self._hold(self._input_converter.end())
        data = self.take(self.end)
        self.clear()
        return data

    def _check_length(self) -> None:
        if self.ms < LEAST_MS:
            text = (
                "Error committing input audio buffer: buffer too small. Expected at least "
                f"{LEAST_MS}ms of audio, but buffer only has {self.ms:.2f}ms of audio."
            )
            raise Denied(Code.COMMIT_EMPTY, text)

    def forget(self, until: int) -> None:
        """Drop audio before a position."""
        while self._held and self.begin < until:
            first = self._held.popleft()
            size = min(first.size, until - self.begin)
            self.begin += size
            self._bytes = max(0.0, self._bytes - size * self.format.bytes_per_s / INPUT_RATE_HZ)
            if size < first.size:
                self._held.appendleft(first[size:])

    def clear(self) -> None:
        """Drop all audio; new audio is not continuous with it."""
        self._input_converter = InputConverter(self.format, self._unit_s)
        self._held.clear()
        self._bytes = 0.0
        self.begin = self.end = self._appended * INPUT_RATE_HZ // self.format.bytes_per_s

    def _hold(self, samples: Samples) -> Samples:
        if samples.size:
            self._held.append(samples)
            self.end += samples.size
        return samples


class Replay:
    """Unanswered audio of the user, which another session of the model gets again."""

    def __init__(self) -> None:
        self._is_kept = False
        self._heard: deque[Samples] = deque()
        self._size = 0

    def save(self, blobs: Blobs) -> SavedReplay:
        """Return the state."""
        return SavedReplay(self._is_kept, blobs.keep_all(self._heard))

    def restore(self, saved: SavedReplay, blobs: Saved) -> None:
        """Go on from a saved state. Raises `ValueError` or `KeyError`."""
        self._is_kept, self._heard = saved.is_kept, deque(samples_of(blobs, saved.heard))
        self._size = sum(heard.size for heard in self._heard)

    @property
    def samples(self) -> Samples:
        """All kept samples."""
        return np.concatenate(self._heard) if self._heard else NO_AUDIO.samples

    @property
    def held_bytes(self) -> int:
        """The bytes of held audio."""
        return 4 * self._size

    def begin(self, samples: Samples) -> None:
        """Begin a turn of the user at the first of these `samples`; continued speech is kept from its
        beginning."""
        if not self._is_kept:
            self._is_kept = True
            self.hear(samples)

    def hear(self, samples: Samples) -> None:
        """Keep more samples, if the user has begun to speak."""
        if not self._is_kept or not samples.size:
            return
        self._heard.append(samples)
        self._size += samples.size
        while self._size > MOST_REPLAYED_S * INPUT_RATE_HZ and len(self._heard) > 1:
            self._size -= self._heard.popleft().size

    def clear(self) -> None:
        """Drop the audio because the model has answered."""
        self._is_kept, self._size = False, 0
        self._heard.clear()


def ms_of(place: int) -> int:
    """Return the milliseconds from the first audio to a position."""
    return max(0, place) * 1000 // INPUT_RATE_HZ
