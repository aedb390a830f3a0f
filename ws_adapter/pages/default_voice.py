"""The reference voice that clients may ask for."""

import base64
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec

from ws_adapter.process.errors import ConfigurationError
from ws_adapter.protocol.media.reference_voice import RATE_HZ, read_voice
from ws_adapter.protocol.wire.errors import Refusal
from ws_adapter.protocol.wire.events import VoiceFields

FILE_NAME: Final = "default.wav"
SHIPPED: Final = Path(__file__).parents[1] / "sounds" / "antiphon-mini.wav"
"""A clip of `antiphon-mini`'s voice, made by `antiphon_training.stages.clip`."""

LARGEST_BYTES: Final = 16 * 2**20


@dataclass(frozen=True)
class DefaultVoice:
    """A reference voice: float32 little-endian mono at 16 kHz."""

    name: str
    audio: bytes

    @cached_property
    def description(self) -> bytes:
        """Return the voice as JSON for clients, with the audio in base64."""
        samples = len(self.audio) // 4
        fields = {
            "name": self.name,
            "duration": round(samples / RATE_HZ, 3),
            "sample_rate": RATE_HZ,
            "samples": samples,
            "base64": base64.b64encode(self.audio).decode(),
        }
        return msgspec.json.encode(fields)


def read_default_voice(folder: Path | None) -> DefaultVoice:
    """Read `default.wav` in `folder`; with None, read the voice file of this package.

    The checks are those for the reference voice of a client. Raises `ConfigurationError`.
    """
    path = folder / FILE_NAME if folder is not None else SHIPPED
    try:
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            raise ConfigurationError(f"{path} is too large: {size} bytes, at most {LARGEST_BYTES}.")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"Cannot read {path}: {error.strerror}.") from None
    if not data.startswith(b"RIFF"):
        raise ConfigurationError(f"{path} is no WAV file.")
    given = VoiceFields(ref_audio_base64=base64.b64encode(data).decode())
    try:
        audio = read_voice([("", given)], None).llm_reference
    except Refusal as refusal:
        why = refusal.message.removeprefix(f"{refusal.param}: ")
        raise ConfigurationError(f"Cannot use {path} as a reference voice: {why}.") from None
    assert audio is not None
    return DefaultVoice(path.stem, audio)
