"""Journal of a conversation: the inputs and records of its latest units, for a replay at another worker."""

import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb

_OPEN: Final = (pb.UNIT_END_CHUNK, pb.UNIT_END_CANCELLED)
"""Ends of a unit after which the next one may continue its turn."""


@dataclass(frozen=True)
class _Entry:
    """A unit that was answered; its request is packed."""

    request: pb.PrefillRequest
    size: int

    @property
    def leaves_turn_open(self) -> bool:
        return self.request.recorded.end in _OPEN


class Journal:
    """The latest units of one full-duplex session, for `Session.replay` at another worker.

    It holds at most `seconds` of units and `size` bytes of inputs and records; the oldest units go first, up
    to one that continues no turn. A turn that is longer than that leaves nothing. Give it to `Session.open`.
    """

    def __init__(self, seconds: float = 60.0, size: int = 16 * 2**20) -> None:
        if seconds <= 0 or size <= 0:
            raise ValueError("The bounds of a journal are above 0.")
        self._seconds = seconds
        self._size = size
        self._entries: deque[_Entry] = deque()
        self._unanswered: dict[int, pb.PrefillRequest] = {}
        self._held = 0
        self._unit_s = 1.0
        self._is_cut_in_turn = False
        """Whether the unit before the first one that is kept left its turn open."""
        self._config = pb.SessionConfig()
        self._model = ""

    @property
    def config(self) -> pb.SessionConfig:
        """Settings to open the next session with: those of the first, and its seed."""
        config = pb.SessionConfig()
        config.CopyFrom(self._config)
        return config

    @property
    def model(self) -> str:
        """Name of the model that the units were heard by; empty before the first session."""
        return self._model

    @property
    def size(self) -> int:
        """Bytes of the recorded units."""
        return self._held

    def __len__(self) -> int:
        """How many recorded units there are."""
        return len(self._entries)

    def settle(self, config: pb.SessionConfig) -> pb.SessionConfig:
        """Keep the settings of a new conversation; return them with `records` and a seed."""
        self._config.CopyFrom(config)
        self._config.records = True
        if not config.HasField("seed"):
            self._config.seed = secrets.randbits(32)
        self._entries.clear()
        self._unanswered.clear()
        self._held = 0
        self._is_cut_in_turn = False
        return self.config

    def begin(self, model: str, unit_s: float) -> None:
        """Note which model hears the units and how long one is."""
        self._model = model
        self._unit_s = unit_s

    def sent(self, request: pb.PrefillRequest) -> None:
        """Keep the input of a unit until its answer."""
        self._unanswered[request.unit] = _packed(request)

    def done(self, unit: int, record: pb.UnitRecord | None) -> None:
        """Keep the record of a unit with its input; without a record forget the unit."""
        request = self._unanswered.pop(unit, None)
        if request is None or record is None:
            return
        request.recorded.CopyFrom(record)
        entry = _Entry(request, request.ByteSize())
        self._entries.append(entry)
        self._held += entry.size
        while self._entries and (self._is_full or self._is_cut_in_turn):
            oldest = self._entries.popleft()
            self._held -= oldest.size
            self._is_cut_in_turn = oldest.leaves_turn_open

    def recorded(self) -> Iterator[pb.PrefillRequest]:
        """Yield the requests of the recorded units with their records, oldest first, the audio as it was."""
        for entry in tuple(self._entries):
            yield _unpacked(entry.request)

    def unanswered(self, first: int) -> list[pb.PrefillRequest]:
        """Number the units that got no answer from `first` on and return their requests, oldest first."""
        requests = [request for _, request in sorted(self._unanswered.items())]
        for unit, request in enumerate(requests, first):
            request.unit = unit
        self._unanswered = {request.unit: request for request in requests}
        if not self._entries:
            self._is_cut_in_turn = False
        return [_unpacked(request) for request in requests]

    @property
    def _is_full(self) -> bool:
        return len(self._entries) * self._unit_s > self._seconds or self._held > self._size


def _packed(request: pb.PrefillRequest) -> pb.PrefillRequest:
    """A copy whose float32 audio is PCM16 if no sample changes by that."""
    packed = pb.PrefillRequest()
    packed.CopyFrom(request)
    audio = packed.duplex.audio
    if audio.encoding == common.AUDIO_ENCODING_PCM_F32LE:
        scaled = np.frombuffer(audio.data, "<f4") * np.float32(32768)
        if np.all((scaled >= -32768) & (scaled <= 32767) & (scaled == np.rint(scaled))):
            audio.encoding = common.AUDIO_ENCODING_PCM_S16LE
            audio.data = scaled.astype("<i2").tobytes()
    return packed


def _unpacked(request: pb.PrefillRequest) -> pb.PrefillRequest:
    """A copy with the audio in float32."""
    unpacked = pb.PrefillRequest()
    unpacked.CopyFrom(request)
    audio = unpacked.duplex.audio
    if audio.encoding == common.AUDIO_ENCODING_PCM_S16LE:
        audio.encoding = common.AUDIO_ENCODING_PCM_F32LE
        audio.data = (np.frombuffer(audio.data, "<i2").astype("<f4") / np.float32(32768)).tobytes()
    return unpacked
