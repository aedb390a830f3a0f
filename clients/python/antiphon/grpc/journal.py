"""Journal of a conversation: the inputs and records of its latest units, for a replay at another worker."""

import secrets
from collections.abc import Iterator

import numpy as np

from antiphon.unit_log import UnitLog
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb


class Journal:
    """The latest units of one full-duplex session, for `Session.replay` at another worker.

    It holds at most `seconds` of units and `size` bytes of inputs and records. Beyond that it drops the
    oldest units; the first remaining unit never continues a turn. A single turn beyond these bounds empties
    the journal. Pass the journal to `Session.open`.
    """

    def __init__(self, seconds: float = 60.0, size: int = 16 * 2**20) -> None:
        self._log: UnitLog[pb.PrefillRequest] = UnitLog(seconds, size)
        """The log of packed requests."""
        self._config = pb.SessionConfig()
        self._model = ""

    @property
    def config(self) -> pb.SessionConfig:
        """The settings to open the next session with: those of the first, and its seed."""
        config = pb.SessionConfig()
        config.CopyFrom(self._config)
        return config

    @property
    def model(self) -> str:
        """The name of the model that received the units; empty before the first session."""
        return self._model

    @property
    def size(self) -> int:
        """The size of the recorded units in bytes."""
        return self._log.held

    def __len__(self) -> int:
        """Return the number of recorded units."""
        return len(self._log)

    def settle(self, config: pb.SessionConfig) -> pb.SessionConfig:
        """Store the settings of a new conversation; return them with `records` and a seed."""
        self._config.CopyFrom(config)
        self._config.records = True
        if not config.HasField("seed"):
            self._config.seed = secrets.randbits(32)
        self._log.clear()
        return self.config

    def begin(self, model: str, unit_s: float) -> None:
        """Store the name of the model and the length of a unit."""
        self._model = model
        self._log.unit_s = unit_s

    def sent(self, request: pb.PrefillRequest) -> None:
        """Store the input of a unit until its answer arrives."""
        self._log.unanswered[request.unit] = _packed(request)

    def done(self, unit: int, record: pb.UnitRecord | None) -> None:
        """Store the record of a unit with its input; drop a unit without a record."""
        request = self._log.unanswered.pop(unit, None)
        if request is None or record is None:
            return
        request.recorded.CopyFrom(record)
        self._log.keep(request, record.end, request.ByteSize())

    def recorded(self) -> Iterator[pb.PrefillRequest]:
        """Yield the requests of the recorded units with their records, oldest first, with float32 audio."""
        for request in self._log:
            yield _unpacked(request)

    def unanswered(self, first: int) -> list[pb.PrefillRequest]:
        """Number the unanswered units from `first` on and return their requests, oldest first."""
        requests = [request for _, request in sorted(self._log.unanswered.items())]
        for unit, request in enumerate(requests, first):
            request.unit = unit
        self._log.unanswered = {request.unit: request for request in requests}
        self._log.replayed()
        return [_unpacked(request) for request in requests]


def _packed(request: pb.PrefillRequest) -> pb.PrefillRequest:
    """Return a copy with PCM16 audio if the conversion from float32 loses nothing."""
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
    """Return a copy with the audio in float32."""
    unpacked = pb.PrefillRequest()
    unpacked.CopyFrom(request)
    audio = unpacked.duplex.audio
    if audio.encoding == common.AUDIO_ENCODING_PCM_S16LE:
        audio.encoding = common.AUDIO_ENCODING_PCM_F32LE
        audio.data = (np.frombuffer(audio.data, "<i2").astype("<f4") / np.float32(32768)).tobytes()
    return unpacked
