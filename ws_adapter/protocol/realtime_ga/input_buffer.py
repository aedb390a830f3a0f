"""The input buffer: audio of the microphone that is in no item yet.

Places in it are samples of float32 at 16 kHz, counted from the first audio that was ever appended.
"""

from collections import deque
from typing import Final

import numpy as np

from ws_adapter.protocol.core.blobs import Blobs, Saved, samples_of
from ws_adapter.protocol.duplex.input import SECOND_S
from ws_adapter.protocol.live.sound import INPUT_RATE_HZ, Ear, Format
from ws_adapter.protocol.realtime_ga.saved.session import SavedBuffer, SavedReplay
from ws_adapter.protocol.realtime_ga.wire.events import Code
from ws_adapter.protocol.realtime_ga.wire.refusals import Denied
from ws_adapter.protocol.wire.codec import NO_AUDIO, Samples

LEAST_MS: Final = 100
"""Of what a client can commit."""

MOST_S: Final = 120.0
"""Of what may wait."""


MOST_REPLAYED_S: Final = 30.0
"""Of speech that the model has not answered: the latest."""


class InputBuffer:
    """Takes audio in `format`, and holds it as the model is to hear it: float32 at 16 kHz.

    `unit_s` is the length of a unit of the model.
    """

    def __init__(self, format: Format, unit_s: float = SECOND_S) -> None:
        self._unit_s = unit_s
        self.format = format
        self.begin = 0
        """Where what is held begins."""
        self.end = 0
        """Where it ends: what the resampler holds back, up to 30 ms, is not in it yet."""
        self._ear = Ear(format, unit_s)
        self._held: deque[Samples] = deque()
        self._bytes = 0.0
        """As they were appended, of what is held."""
        self._appended = 0

    def save(self, blobs: Blobs) -> SavedBuffer:
        """Return the state."""
        held = blobs.keep_all(self._held)
        return SavedBuffer(self.begin, self._ear.save(), held, self._bytes, self._appended)

    def restore(self, saved: SavedBuffer, blobs: Saved) -> None:
        """Go on from a saved state of the same format. Raises `ValueError` or `KeyError`."""
        self._ear.restore(saved.ear)
        self._held = deque(samples_of(blobs, saved.held))
        self.begin, self._bytes, self._appended = saved.begin, saved.bytes, saved.appended
        self.end = saved.begin + sum(held.size for held in self._held)

    @property
    def ms(self) -> float:
        """How much is held, as it was appended."""
        return self._bytes * 1000 / self.format.bytes_per_s

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that it holds."""
        return 4 * (self.end - self.begin) + self._ear.waiting_bytes

    def check_room(self, size: int) -> None:
        """Raise `Refusal` if so many bytes more would be too many."""
        if (self._bytes + size) / self.format.bytes_per_s > MOST_S:
            message = f"{MOST_S:g} s of audio wait, the most that may; commit or clear them"
            raise Denied(Code.BUFFER_FULL, message, "audio")

    def append(self, data: bytes) -> Samples:
        """More of it, cut anywhere; what can be heard of it now."""
        self._bytes += len(data)
        self._appended += len(data)
        return self._hold(self._ear.hear(data))

    @property
    def samples(self) -> Samples:
        """All that is held and can be heard yet."""
        return np.concatenate([NO_AUDIO.samples, *self._held])

    def take(self, end: int) -> bytes:
        """Return what is held up to there, which then is not held any more."""
        samples = self.samples
        size = min(max(0, end - self.begin), samples.size)
        self.forget(end)
        data: bytes = samples[:size].astype("<f4", copy=False).tobytes()
        return data

    def take_whole(self) -> bytes:
        """Return all that is held, in the middle of a sound. Raises `Refusal` if it is too short."""
        self._check_length()
        return self.take(self.end)

    def take_all(self) -> bytes:
        """Return all that is held, at the end of a sound. Raises `Refusal` if it is too short."""
        self._check_length()
        self._hold(self._ear.end())
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
        """Drop audio before a place."""
        while self._held and self.begin < until:
            first = self._held.popleft()
            size = min(first.size, until - self.begin)
            self.begin += size
            self._bytes = max(0.0, self._bytes - size * self.format.bytes_per_s / INPUT_RATE_HZ)
            if size < first.size:
                self._held.appendleft(first[size:])

    def clear(self) -> None:
        """Drop all audio; what comes is another sound."""
        self._ear = Ear(self.format, self._unit_s)
        self._held.clear()
        self._bytes = 0.0
        self.begin = self.end = self._appended * INPUT_RATE_HZ // self.format.bytes_per_s

    def _hold(self, samples: Samples) -> Samples:
        if samples.size:
            self._held.append(samples)
            self.end += samples.size
        return samples


class Replay:
    """Audio of the user without an answer, which another session of the model hears again."""

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
        """All that is kept."""
        return np.concatenate(self._heard) if self._heard else NO_AUDIO.samples

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that it holds."""
        return 4 * self._size

    def begin(self, samples: Samples) -> None:
        """Begin a turn of the user at the first of these `samples`; speech that goes on is kept from its
        begin."""
        if not self._is_kept:
            self._is_kept = True
            self.hear(samples)

    def hear(self, samples: Samples) -> None:
        """Keep more, if the user has begun to speak."""
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
    """Return the milliseconds from the first audio to a place."""
    return max(0, place) * 1000 // INPUT_RATE_HZ
