"""JSON and base64 at the edge: strict on the way in, joined bytes on the way out.

The long base64 of an audio append is cut out of its frame and decoded by itself, in one SIMD pass; only the
short rest goes through the JSON parser. A frame that does not fit this fast path is parsed whole. An event
that does not fit its struct is decoded generically, to name the fault. All errors are `Refusal` or
`InvalidUtf8`.
"""

import binascii
import math
import re
import secrets
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, Generic, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np
import pybase64
from msgspec import Struct
from numpy.typing import NDArray

from ws_adapter.protocol.wire import scan
from ws_adapter.protocol.wire.errors import ErrorCode, InvalidUtf8, Refusal, invalid, missing
from ws_adapter.protocol.wire.events import AudioEncoding, ServerEvent
from ws_adapter.protocol.wire.faults import find_fault, shown

Samples: TypeAlias = NDArray[np.float32]
"""Mono audio, shape `(samples,)`, full scale at -1 and 1."""

_WIDTHS: Final[dict[AudioEncoding, int]] = {"f32": 4, "pcm16": 2}

FLOAT32: Final = np.dtype("<f4")

LOUDEST: Final = 16.0
"""The highest peak of accepted float32 samples: a higher one means that the bytes are no float32 PCM."""

_WHITE_SPACE: Final = b" \t\n\r\v\f"
_NOT_JSON: Final = "the frame is not valid JSON"

_AUDIO_FIELDS: Final = ("audio", "audio_base64", "audio_data")
_AUDIO_VALUE: Final = re.compile(rb'"audio(?:_base64|_data)?"\s*:\s*"')
_AUDIO_BEGINS_WITHIN: Final = 512
_LONG: Final = 2048
"""Base64 of fewer characters is parsed with its frame."""

_TOKEN: Final = secrets.token_hex(16)
"""The placeholder for cut base64. It is random and never leaves the process, so no client can send it."""

E = TypeVar("E")


class CutBase64(str):
    """Base64 that was cut out of its frame. Its value as a `str` is only the placeholder.

    `size` is the number of decoded bytes. `data` holds them, or is None if they were not to be decoded.
    """

    __slots__ = ("data", "size")

    data: bytes | None
    size: int

    @classmethod
    def of(cls, size: int, data: bytes | None) -> "CutBase64":
        """Return a piece of base64 of `size` bytes."""
        cut = cls(_TOKEN)
        cut.size, cut.data = size, data
        return cut


def check(frame: bytes) -> None:
    """Raise `InvalidUtf8`, or `Refusal` for a frame that would take too long to parse."""
    if len(frame) > scan.MAX_ITEMS:
        scan.count(frame)
    if frame.isascii():
        return
    try:
        frame.decode()
    except UnicodeDecodeError:
        raise InvalidUtf8 from None


class EventDecoder(Generic[E]):
    """A decoder of the client events of one dialect; `union` is the union of their tagged structs."""

    def __init__(self, union: Any) -> None:
        self._typed: msgspec.json.Decoder[E] = msgspec.json.Decoder(union)
        self._union = union
        self._shapes: dict[str, type] = {str(shape.__struct_config__.tag): shape for shape in get_args(union)}

    def decode(self, frame: bytes, *, sized_only: bool = False) -> E:
        """Return the event in a text frame.

        Raises `InvalidUtf8`, or `Refusal` with `invalid_json`, `invalid_payload`, `missing_field` or
        `unknown_event`. Of duplicate keys the last counts. With `sized_only` the audio of an append is
        neither validated nor decoded; `decode_audio` then returns only its length.
        """
        event = self._decode_cut(frame, sized_only) if len(frame) > _LONG else None
        if event is None:
            event = self._decode_whole(frame)
            if sized_only:
                _size_audio(getattr(event, "input", event))
        return event

    def _decode_cut(self, frame: bytes, sized_only: bool) -> E | None:
        """Return the event in a frame whose audio is strict base64, None if the frame has to be parsed whole.

        Strict base64 contains no quote, backslash or control character, and only ASCII. So the token can
        replace it between the same two quotes without a change to the rest of the frame. If the token then is
        the audio of the event, the cut text was exactly that string.
        """
        found = _AUDIO_VALUE.search(frame, 0, _AUDIO_BEGINS_WITHIN)
        if found is None:
            return None
        begin, end = found.end(), frame.find(b'"', found.end())
        if end - begin < _LONG:
            return None
        try:
            data = None if sized_only else pybase64.b64decode(memoryview(frame)[begin:end], validate=True)
            event = self._decode_whole(b"".join((frame[:begin], _TOKEN.encode(), frame[end:])))
        except (binascii.Error, ValueError, Refusal, InvalidUtf8):
            return None
        size = (end - begin) * 3 // 4 - frame.count(b"=", end - 2, end)
        fields: Any = getattr(event, "input", event)
        for name in _AUDIO_FIELDS:
            if getattr(fields, name, None) == _TOKEN:
                msgspec.structs.force_setattr(fields, name, CutBase64.of(size, data))
                return event
        return None

    def _decode_whole(self, frame: bytes) -> E:
        check(frame)
        try:
            return self._typed.decode(frame)
        except msgspec.ValidationError:
            return self._explain(frame)
        except (msgspec.DecodeError, RecursionError):
            raise Refusal(ErrorCode.INVALID_JSON, _NOT_JSON) from None

    def _explain(self, frame: bytes) -> E:
        value = _decode_object(frame)
        name = value.get("type")
        if name is None or name == "":
            raise missing("type", "the name of the event")
        if not isinstance(name, str):
            raise invalid("type", f"expected a string, got {shown(name)}")
        if name not in self._shapes:
            told = shown(name)
            raise Refusal(ErrorCode.UNKNOWN_EVENT, f"type: unknown event {told}", "type", told.strip('"'))
        fault = find_fault(value, self._shapes[name], "")
        if fault is not None:
            raise fault
        event: E = convert(value, self._union, "event")
        return event


class RequestDecoder(Generic[E]):
    """A decoder for a dialect whose clients send one kind of object, `shape`, without a `type`."""

    def __init__(self, shape: type[E]) -> None:
        self._typed: msgspec.json.Decoder[E] = msgspec.json.Decoder(shape)
        self._shape = shape

    def decode(self, frame: bytes) -> E:
        """Return the object in a text frame.

        Raises `InvalidUtf8`, or `Refusal` with `invalid_json`, `invalid_payload` or `missing_field`. Of
        duplicate keys the last counts.
        """
        check(frame)
        try:
            return self._typed.decode(frame)
        except msgspec.ValidationError:
            request: E = convert(_decode_object(frame), self._shape, "")
            return request
        except (msgspec.DecodeError, RecursionError):
            raise Refusal(ErrorCode.INVALID_JSON, _NOT_JSON) from None


_generic: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(float_hook=float)


def _decode_object(frame: bytes) -> dict[str, Any]:
    """Return the object in a frame that does not fit the fast path of its struct."""
    try:
        value = _generic.decode(frame)
    except (msgspec.DecodeError, RecursionError):
        raise Refusal(ErrorCode.INVALID_JSON, _NOT_JSON) from None
    if not isinstance(value, dict):
        raise Refusal(ErrorCode.INVALID_PAYLOAD, f"an event is a JSON object, got {shown(value)}")
    return value


def _size_audio(fields: Any, names: Sequence[str] = _AUDIO_FIELDS) -> None:
    """Replace base64 in fields, also in nested ones, by placeholders with its size."""
    for name in names:
        value = getattr(fields, name, None)
        if isinstance(value, str) and value:
            cut = CutBase64.of(len(value.rstrip("=")) * 3 // 4, None)
            msgspec.structs.force_setattr(fields, name, cut)
        elif isinstance(value, msgspec.Struct):
            _size_audio(value, value.__struct_fields__)


def convert(value: object, shape: Any, path: str) -> Any:
    """Return `value`, decoded from JSON, as an instance of `shape`; raises `Refusal` if it does not fit."""
    try:
        return msgspec.convert(value, shape, strict=True)
    except (msgspec.ValidationError, RecursionError):
        fault = find_fault(value, shape, path) if isinstance(shape, type) else None
        raise fault or invalid(path or "event", "does not have the expected form") from None


class Clip(Struct, frozen=True):
    """Decoded audio: finite float32 samples in [-1, 1]; `clipped` is the number of samples that were clipped.

    `undecoded` is the number of samples of audio that was not decoded.
    """

    samples: Samples
    clipped: int = 0
    undecoded: int = 0

    @property
    def count(self) -> int:
        """The number of samples, decoded or not."""
        return self.samples.size + self.undecoded

    @property
    def data(self) -> bytes:
        """The samples as little-endian bytes, without a copy if they came in that form."""
        base = self.samples.base
        if isinstance(base, bytes) and len(base) == self.samples.nbytes:
            return base
        return self.samples.astype("<f4", copy=False).tobytes()


NO_AUDIO: Final = Clip(np.zeros(0, np.float32))


def decode_base64(text: str, param: str) -> bytes:
    """Return the decoded bytes of base64 in the standard alphabet with padding; ASCII white space is
    ignored."""
    if isinstance(text, CutBase64) and text.data is not None:
        return text.data
    try:
        return pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    try:
        return pybase64.b64decode(text.encode("ascii").translate(None, _WHITE_SPACE), validate=True)
    except (binascii.Error, ValueError):
        raise invalid(param, "expected base64 with padding, got something else") from None


def decode_audio(text: str, encoding: AudioEncoding, param: str) -> Clip:
    """Return the samples in base64 of raw little-endian mono PCM.

    Raises `Refusal` for bad base64, a broken last sample, NaN or infinity, or a peak above `LOUDEST`.
    """
    width = _WIDTHS[encoding]
    if isinstance(text, CutBase64) and text.data is None:
        return Clip(NO_AUDIO.samples, undecoded=text.size // width)
    data = decode_base64(text, param)
    if len(data) % width:
        raise invalid(
            param, f"expected whole {encoding} samples of {width} bytes, got {len(data)} bytes in all"
        )
    if encoding == "pcm16":
        return Clip(np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768))
    return bounded(np.frombuffer(data, FLOAT32), param)


def bounded(samples: Samples, param: str) -> Clip:
    """Check that `samples` are audio and clip them to [-1, 1]; raise `Refusal`."""
    if not samples.size:
        return Clip(samples)
    # NaN propagates through both reductions, which need no temporary array, so the peak also shows NaN.
    peak = max(float(np.maximum.reduce(samples)), -float(np.minimum.reduce(samples)))
    if not math.isfinite(peak):
        raise invalid(param, "expected finite samples, got NaN or infinity")
    if peak > LOUDEST:
        raise invalid(param, f"not float32 PCM in [-1, 1]: the peak is {peak:.3g}")
    if peak <= 1.0:
        return Clip(samples)
    clipped = int(np.count_nonzero(np.abs(samples) > 1.0))
    return Clip(np.clip(samples, -1.0, 1.0), clipped)


_encoder: Final = msgspec.json.Encoder()
_MARK: Final = bytes(3)
_ENCODED_MARK: Final = b'"AAAA"'


def encode(event: ServerEvent) -> bytes:
    """Return `event` as one JSON object in UTF-8; its field of bytes, if it has one, becomes base64."""
    return b"".join(encoded(event))


def encoded(event: ServerEvent) -> Sequence[bytes]:
    """Return the parts of an encoded event; long audio is one of them, so that it is copied only once."""
    name = _bytes_field(type(event))
    data: bytes | None = getattr(event, name) if name else None
    if not name or not data:
        return (_encoder.encode(event),)
    # The key begins with an unescaped quote, so the match is the field itself and not a part of a text.
    key = b'"%b":' % name.encode()
    marked = _encoder.encode(msgspec.structs.replace(event, **{name: _MARK}))
    before, _, after = marked.partition(key + _ENCODED_MARK)
    return (before, key, b'"', pybase64.b64encode(data), b'"', after)


def stamp(event: ServerEvent, sent_at: float, wall_clock_ms: float | None) -> None:
    """Set the time of sending, in Unix seconds, and the time that the answer of a unit took, in events with
    these fields."""
    given: Any = event
    if event.tells_time:
        given.server_send_ts = round(sent_at, 3)
    if wall_clock_ms is not None and event.figures is not None:
        figures = getattr(given, event.figures) if event.figures else given
        figures.wall_clock_ms = wall_clock_ms


def audio_bytes(event: ServerEvent) -> int:
    """Return the number of bytes of output audio in an event, before base64."""
    name = _bytes_field(type(event))
    return len(getattr(event, name) or b"") if name else 0


@cache
def _bytes_field(shape: type[ServerEvent]) -> str | None:
    types = get_type_hints(shape)
    names = (name for name in shape.__struct_fields__ if bytes in (types[name], *get_args(types[name])))
    return next(names, None)
