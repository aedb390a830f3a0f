"""Messages of a chat: text, pictures, recordings and videos."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, TypeAlias

from antiphon.audio.files import read_audio
from antiphon.audio.samples import INPUT_RATE_HZ, Samples, as_samples
from antiphon.audio.wav import decode_wav, is_wav
from antiphon.errors import AudioError, VideoError


@dataclass(frozen=True)
class Image:
    """A picture as the bytes of a JPEG, PNG or WebP file."""

    data: bytes

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a picture file. Raises OSError."""
        return cls(Path(path).read_bytes())


@dataclass(frozen=True, eq=False)
class Clip:
    """A recording: float32 samples in [-1, 1], shape `(samples,)`, mono, or the bytes of a whole WAV file.

    A WebSocket server takes samples at 8 to 48 kHz, and WAV files of 8 to 48 kHz with one or two channels in
    PCM16, PCM24, PCM32 or float32. Raises `AudioError` for anything else.
    """

    audio: Samples | bytes
    rate_hz: int = INPUT_RATE_HZ
    """The sample rate of samples in Hz; a WAV file states its own."""

    def __post_init__(self) -> None:
        if not isinstance(self.audio, bytes):
            as_samples(self.audio)
        elif not is_wav(self.audio):
            raise AudioError("The bytes of a clip are those of a WAV file, and these are not.")

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a recording: a WAV file, which is sent unchanged, or another file that `read_audio` reads.

        Raises `AudioError`, whose text names the remedy, and OSError.
        """
        data = Path(path).read_bytes()
        return cls(data) if is_wav(data) else cls(read_audio(path))

    def samples(self, rate_hz: int) -> Samples:
        """Return the samples, shape `(samples,)`, if they are mono at `rate_hz`.

        Raises `AudioError`, whose text names the remedy, for any other recording: nothing is resampled.
        """
        if isinstance(self.audio, bytes):
            return decode_wav(self.audio, "clip.wav", rate_hz)
        if self.rate_hz != rate_hz:
            raise AudioError(f"The clip has {self.rate_hz} Hz, {rate_hz} Hz is needed. Resample it.")
        return self.audio


@dataclass(frozen=True)
class Video:
    """A video as the bytes of an MP4, MOV, WebM or Matroska file.

    With `omni_mode` of `Client.chat` the model hears it, too. Raises `VideoError` for another file.
    """

    data: bytes
    stack_frames: int = 1
    """The number of frames of each second that the model sees, 1 to 8.

    Those after the first are joined to one picture.
    """

    def __post_init__(self) -> None:
        if not is_video(self.data):
            raise VideoError("The bytes of a video are those of an MP4, MOV, WebM or Matroska file.")

    @classmethod
    def read(cls, path: str | Path, stack_frames: int = 1) -> Self:
        """Read a video file. Raises `VideoError` for another file, and OSError."""
        data = Path(path).read_bytes()
        if not is_video(data):
            raise VideoError(f"{path} is no MP4, MOV, WebM or Matroska file. {_CONVERT.format(path=path)}")
        return cls(data, stack_frames)


_CONVERT = "Convert it: ffmpeg -i {path} -c:v libx264 -c:a aac video.mp4"
_MATROSKA = b"\x1aE\xdf\xa3"
_BOXES = frozenset({b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"})


def is_video(data: bytes) -> bool:
    """Return whether bytes begin like a video file that a server accepts."""
    return data.startswith(_MATROSKA) or data[4:8] in _BOXES


Part: TypeAlias = str | Image | Clip | Video
"""A piece of a message; a `str` is text."""


@dataclass(frozen=True)
class Tool:
    """A function of your program that the model may call."""

    name: str
    """The name: at most 64 letters, digits, `_` and `-`."""
    description: str = ""
    """The description of the function for the model."""
    parameters: Mapping[str, object] | None = None
    """The JSON Schema of the arguments, of type object; None for a function without any."""


@dataclass(frozen=True)
class Call:
    """A complete call that the model made; answer it with a message of role `tool`."""

    id: str
    name: str
    arguments: str
    """The arguments as the text of a JSON object."""


@dataclass(frozen=True)
class Message:
    """One entry of a chat history: a role and its content.

    `calls` belong to an assistant's `Answer`. `call_id` belongs to a message of role `tool`, whose content is
    the result of that call.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str | Sequence[Part]
    calls: Sequence[Call] = ()
    call_id: str | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The content as a sequence of parts."""
        return (self.content,) if isinstance(self.content, str) else tuple(self.content)


def history(messages: str | Sequence[Message]) -> Sequence[Message]:
    """Return the history; a single text becomes one message of the user."""
    return [Message("user", messages)] if isinstance(messages, str) else messages
