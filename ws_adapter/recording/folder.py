"""Writing one recording to disk."""

import errno
import os
import shutil
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import msgspec
import numpy as np

from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.core.signals import OUTPUT_RATE_HZ
from ws_adapter.protocol.live.sound import Encoding, Format
from ws_adapter.protocol.media.reference_voice import RATE_HZ
from ws_adapter.protocol.wire.codec import bounded, decode_base64
from ws_adapter.protocol.wire.errors import Refusal
from ws_adapter.recording.frames import Coding, Media, Unreadable, head, read, with_references
from ws_adapter.recording.wav import HEADER_BYTES, LONGEST, SAMPLE_BYTES, Track, header

Direction = Literal["up", "down"]

META: Final = "meta.json"
STREAM: Final = "stream.jsonl"

G711_RATE_HZ: Final = 8000

FILE_BYTES: Final = 4096
"""The approximate disk space of a file besides its bytes, so that many tiny recordings count too."""

FILES_OF_A_FRAME: Final = 256
"""The most files of one event, as many as the messages of the longest chat."""

FILES_OF_A_SESSION: Final = 4096
"""The most files of a session. A video session of ten minutes has at most 2400 pictures, four a second."""

_INLINE: Final = 256
"""The longest media value that stays in the event if it is not base64, in characters."""

_SIGNATURES: Final = (
    *((b"\xff\xd8\xff", 0, "jpg"), (b"\x89PNG\r\n\x1a\n", 0, "png"), (b"WEBP", 8, "webp")),
    *((b"ftyp", 4, "mp4"), (b"\x1aE\xdf\xa3", 0, "webm")),
)
"""Pictures and videos: signature, its offset, and the extension of the file."""


class Client(msgspec.Struct, omit_defaults=True, frozen=True):
    """A session's client: its address, the name of its key, and the user agent."""

    address: str
    key: str | None = None
    user_agent: str | None = None

    @property
    def caller(self) -> str:
        """The owner of the recording: a key, or an address without a key."""
        return f"key {self.key}" if self.key is not None else self.address


class Meta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The summary of a recording. Unknown fields are absent. Times are ISO 8601 in UTC."""

    session_id: str
    mode: str
    created_at: str
    ended_at: str | None = None
    duration_s: float | None = None
    worker: str | None = None
    client: Client
    close_reason: str | None = None
    audio_started_at: str | None = None
    """The start of both tracks."""
    dropped_frames: int = 0
    """Frames that are missing because the disk was too slow."""
    omitted_files: int = 0
    """Files that were not written because of their number."""
    stopped: str | None = None
    """The reason why no frames were written from some point on."""


class Folder:
    """Writer of one recording in a new folder at `path`. Methods raise OSError.

    Files are open only during a write, so that a session holds no descriptor of its recording. A partial
    write is undone, so that the files stay readable. `size` is the approximate disk space in bytes, `caller`
    the owner of the recording.
    """

    def __init__(self, path: Path, meta: Meta) -> None:
        self.path = path
        self.meta = meta
        self.size = 0
        self.caller = meta.client.caller
        self.is_discarded = False
        self._files = 0
        self._stream_end = 0
        self._tracks = {"up": Track("up.wav", RATE_HZ), "down": Track("down.wav", OUTPUT_RATE_HZ)}
        self._audio_started: float | None = None
        coding = Coding(is_pcm16=meta.mode == Mode.TRANSCRIPTION)
        self._codings: dict[Direction, Coding] = {"up": coding, "down": coding}

    def create(self) -> None:
        """Create the folder, which must not exist yet, and a summary without an end."""
        os.mkdir(self.path, 0o700)
        try:
            self._write_meta()
        except OSError:
            with suppress(OSError):
                os.rmdir(self.path)
            raise
        self.size += 2 * FILE_BYTES

    def add(
        self, seq: int, ts: float, direction: Direction, frame: bytes, is_text: bool, is_refused: bool = False
    ) -> None:
        """Append a frame at the time `ts`, in Unix seconds, without its media if its event was rejected."""
        line: dict[str, Any] = {"seq": seq, "ts": ts, "dir": direction}
        try:
            if not is_text:
                raise Unreadable
            save = _size_only if is_refused else _FrameMedia(self, seq, ts, direction).save
            event = read(frame)
            if direction == "down":
                self._follow(event)
            # A deeply nested event may be readable, but exceed the recursion limit in the next steps.
            line["frame"] = with_references(event, save, self._codings[direction])
            encoded = msgspec.json.encode(line)
        except (Unreadable, RecursionError, msgspec.MsgspecError):
            said = {"bytes": len(frame), "binary": not is_text, "head": head(frame)}
            encoded = msgspec.json.encode({**line, "frame": None, "unreadable": said})
        encoded += b"\n"
        self._write(STREAM, encoded, self._stream_end, self._stream_end)
        self._stream_end += len(encoded)

    def _follow(self, event: Any) -> None:
        """Apply the audio formats of an event that sets them; Live has one format for both directions."""
        match event:
            case {"type": "session.started", "session": {"audio": {"format": format}}}:
                self._choose("up", format)
                self._choose("down", format)
            case {
                "type": "session.created" | "session.updated",
                "session": {"audio": {"input": {"format": up}} as audio},
            }:
                self._choose("up", up)
                if isinstance(down := audio.get("output"), dict):
                    self._choose("down", down.get("format"))

    def _choose(self, direction: Direction, format: Any) -> None:
        """Set the format of a direction. A track with audio keeps its rate; audio at other rates goes into
        files."""
        match format:
            case {"type": str(encoding)} if encoding in get_args(Encoding):
                rate_hz = int(format.get("rate") or G711_RATE_HZ)
                self._codings[direction] = Coding(chosen=Format(cast(Encoding, encoding), rate_hz))
                if not self._tracks[direction].length:
                    self._tracks[direction].rate_hz = rate_hz

    def has_track(self, direction: Direction, coding: Coding) -> bool:
        """Return whether samples of this coding have the rate of the track of their direction."""
        return coding.chosen is None or coding.chosen.rate_hz == self._tracks[direction].rate_hz

    def finish(
        self, ended_at: float, worker: str | None, close_reason: str, duration_s: float, dropped_frames: int
    ) -> None:
        """Complete the summary; `ended_at` is Unix time in seconds."""
        self.meta.ended_at = iso(ended_at)
        self.meta.worker, self.meta.close_reason = worker, close_reason
        self.meta.duration_s, self.meta.dropped_frames = duration_s, dropped_frames
        self._write_meta()

    def add_clip(self, direction: Direction, ts: float, data: bytes) -> dict[str, Any]:
        """Write a clip of float32 samples on its track; return the reference to it."""
        track = self._tracks[direction]
        samples = len(data) // SAMPLE_BYTES
        # Audio of the client ends at `ts`; audio of the server starts at `ts`.
        at = ts - samples / track.rate_hz if direction == "up" else ts
        if self._audio_started is None:
            self._audio_started = at
            self.meta.audio_started_at = iso(at)
            self._write_meta()
        start = track.place(at - self._audio_started)
        if start + samples > LONGEST:
            raise OSError(errno.EFBIG, "the audio is longer than a WAV file can be")
        place = HEADER_BYTES + start * SAMPLE_BYTES
        self._write(track.file, data, place, track.end, header(start + samples, track.rate_hz))
        track.length = start + samples
        return {"file": track.file, "start": start, "samples": samples, "sample_rate": track.rate_hz}

    @property
    def takes_files(self) -> bool:
        """Whether the recording may have another file; if not, count an omitted file."""
        if self._files < FILES_OF_A_SESSION:
            return True
        self.meta.omitted_files += 1
        return False

    def discard(self) -> None:
        """Remove the recording. Call no method that writes afterwards."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.is_discarded, self.size = True, 0

    def add_file(self, name: str, data: bytes) -> None:
        """Write a separate file; `name` contains at most one folder."""
        self._files += 1
        if not (self.path / name).parent.is_dir():
            os.mkdir((self.path / name).parent, 0o700)
            self.size += FILE_BYTES
        self._write(name, data, 0, 0)

    def _write(self, name: str, data: bytes, place: int, end: int, start: bytes = b"") -> None:
        """Write `data` at the offset `place`, then `start` at offset 0; on failure restore the old size
        `end`."""
        path = self.path / name
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _write_all(file, data, place)
            _write_all(file, start, 0)
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, end) if end else os.unlink(path)
            raise
        finally:
            os.close(file)
        self.size += len(data) + (FILE_BYTES if not end else 0)

    def _write_meta(self) -> None:
        new = self.path / f"{META}.new"
        try:
            file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                _write_all(file, msgspec.json.format(msgspec.json.encode(self.meta)) + b"\n", 0)
            finally:
                os.close(file)
            os.replace(new, self.path / META)
        except OSError:
            with suppress(OSError):
                os.unlink(new)
            raise


class _FrameMedia:
    """Saves the audio and images of one frame to files."""

    def __init__(self, folder: Folder, seq: int, ts: float, direction: Direction) -> None:
        self._folder = folder
        self._seq = seq
        self._ts = ts
        self._direction = direction
        self._files = 0
        self._has_clip = False

    def save(self, media: Media, text: str, coding: Coding) -> Any:
        """Save the media in `text` and return the reference; return a short text that is not base64
        unchanged."""
        data = _decode(text)
        if data is None:
            return text if len(text) <= _INLINE else self._add_file(text.encode(), "txt")
        match media:
            case Media.SPEECH:
                has_track = not self._has_clip and self._folder.has_track(self._direction, coding)
                samples = _samples(data, coding) if has_track else None
                if samples is None:
                    return self._add_file(data, "bin")
                self._has_clip = True
                return self._folder.add_clip(self._direction, self._ts, samples)
            case Media.VOICE:
                samples = None if data.startswith(b"RIFF") else _samples(data, Coding())
                if samples is None:
                    return self._add_file(data, "wav" if data.startswith(b"RIFF") else "bin")
                count = len(samples) // SAMPLE_BYTES
                reference = self._add_file(header(count, coding.rate_hz) + samples, "wav")
                if "file" not in reference:
                    return reference
                return {"file": reference["file"], "samples": count, "sample_rate": coding.rate_hz}
            case Media.CLIP:
                return self._add_file(data, "bin")
            case Media.IMAGE:
                return self._add_file(data, _visual_extension(data))

    def _add_file(self, data: bytes, extension: str) -> dict[str, Any]:
        if self._files == FILES_OF_A_FRAME:
            self._folder.meta.omitted_files += 1
            return {"bytes": len(data)}
        if not self._folder.takes_files:
            return {"bytes": len(data)}
        self._files += 1
        name = f"{self._direction}/{self._seq:06d}-{self._files}.{extension}"
        self._folder.add_file(name, data)
        return {"file": name, "bytes": len(data)}


def _size_only(media: Media, text: str, coding: Coding) -> Any:
    return text if len(text) <= _INLINE else {"bytes": len(text)}


def iso(unix: float) -> str:
    """Return Unix time in ISO 8601."""
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _decode(text: str) -> bytes | None:
    if text.startswith("data:"):
        text = text.partition(";base64,")[2]
    try:
        return decode_base64(text, "") if text else None
    except Refusal:
        return None


def _samples(data: bytes, coding: Coding) -> bytes | None:
    """Return the bytes of the float32 samples in `data`, None if it holds no valid audio."""
    if coding.chosen is not None:
        whole = len(data) - len(data) % coding.chosen.width
        return coding.chosen.decode(data[:whole]).astype("<f4", copy=False).tobytes() or None
    width = 2 if coding.is_pcm16 else SAMPLE_BYTES
    if not data or len(data) % width:
        return None
    if coding.is_pcm16:
        return (np.frombuffer(data, "<i2").astype("<f4") / np.float32(32768)).tobytes()
    try:
        bounded(np.frombuffer(data, "<f4"), "")
    except Refusal:
        return None
    return data


def _visual_extension(data: bytes) -> str:
    return next((ext for magic, at, ext in _SIGNATURES if data[at : at + len(magic)] == magic), "bin")


def _write_all(file: int, data: bytes, place: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(file, left, place)
        left, place = left[written:], place + written
