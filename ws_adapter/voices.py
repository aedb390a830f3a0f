"""The reference voice that clients may ask for."""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ws_adapter.dialects.errors import Refusal
from ws_adapter.dialects.events import VoiceFields
from ws_adapter.dialects.voice import RATE_HZ, read_voice
from ws_adapter.errors import ConfigurationError

FILE_NAME: Final = "default.wav"
LARGEST_BYTES: Final = 16 * 2**20


@dataclass(frozen=True)
class DefaultVoice:
    """Float32 little-endian mono at 16 kHz."""

    name: str
    audio: bytes

    @property
    def description(self) -> dict[str, Any]:
        """What clients are told, the audio as base64."""
        samples = len(self.audio) // 4
        return {
            "name": self.name,
            "duration": round(samples / RATE_HZ, 3),
            "sample_rate": RATE_HZ,
            "samples": samples,
            "base64": base64.b64encode(self.audio).decode(),
        }


def read_default_voice(folder: Path) -> DefaultVoice:
    """Reads `default.wav` as a client's reference would be read. Raises `ConfigurationError`."""
    path = folder / FILE_NAME
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
