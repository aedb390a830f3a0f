"""JSON and base64 at the edge: strict on the way in, joined bytes on the way out.

An audio append costs one typed decode of the frame and one SIMD pass over its base64; the slow, explaining
path runs only for what that refuses. Nothing here raises anything but `Refusal` and `InvalidUtf8`.
"""

import binascii
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, get_args

import msgspec
import numpy as np
import pybase64
from numpy.typing import NDArray

from ws_adapter.dialects.errors import ErrorCode, InvalidUtf8, Refusal, invalid, missing
from ws_adapter.dialects.events import AudioDelta, ServerEvent
from ws_adapter.dialects.faults import find_fault, shown

Samples: TypeAlias = NDArray[np.float32]
"""Mono audio, shape `(samples,)`, full scale at -1 and 1."""

AudioFormat: TypeAlias = Literal["f32", "pcm16"]

LOUDEST: Final = 16.0
"""A peak above this is not float32 PCM but something else read as such."""

MAX_ITEMS: Final = 65_536
"""Most commas in a frame. Items become objects, by the million 30 times as large as their text; a frame of
such would stop every session for seconds. No event comes near: a prompt made of commas has half as many."""

_WHITE_SPACE: Final = b" \t\n\r\v\f"
_NOT_JSON: Final = "the frame is not valid JSON"

E = TypeVar("E")


class EventDecoder(Generic[E]):
    """Decodes the client events of one dialect; `union` is that of their tagged structs."""

    def __init__(self, union: Any) -> None:
        self._typed: msgspec.json.Decoder[E] = msgspec.json.Decoder(union)
        self._generic: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=float)
        self._union = union
        self._shapes: dict[str, type] = {str(shape.__struct_config__.tag): shape for shape in get_args(union)}

    def decode(self, frame: bytes) -> E:
        """The event in a text frame.

        Raises `InvalidUtf8`, or `Refusal` with `invalid_json`, `invalid_payload`, `missing_field` or
        `unknown_event`. With duplicate keys the last counts.
        """
        _check_utf8(frame)
        if len(frame) > 2 * MAX_ITEMS and frame.count(b",") > MAX_ITEMS:
            raise Refusal(ErrorCode.INVALID_PAYLOAD, f"an event has at most {MAX_ITEMS} items, got more")
        try:
            return self._typed.decode(frame)
        except msgspec.ValidationError:
            return self._explain(frame)
        except (msgspec.DecodeError, RecursionError):
            raise Refusal(ErrorCode.INVALID_JSON, _NOT_JSON) from None

    def _explain(self, frame: bytes) -> E:
        try:
            value = self._generic.decode(frame)
        except (msgspec.DecodeError, RecursionError):
            raise Refusal(ErrorCode.INVALID_JSON, _NOT_JSON) from None
        if not isinstance(value, dict):
            raise Refusal(ErrorCode.INVALID_PAYLOAD, f"an event is a JSON object, got {shown(value)}")
        name = value.get("type")
        if name is None or name == "":
            raise missing("type", "the name of the event")
        if not isinstance(name, str):
            raise invalid("type", f"expected a string, got {shown(name)}")
        if name not in self._shapes:
            raise Refusal(ErrorCode.UNKNOWN_EVENT, f"type: unknown event {shown(name)}", "type")
        fault = find_fault(value, self._shapes[name], "")
        if fault is not None:
            raise fault
        event: E = convert(value, self._union, "event")
        return event


def convert(value: object, shape: Any, path: str) -> Any:
    """`value`, decoded from JSON, as an instance of `shape`; raises `Refusal` if it does not fit."""
    try:
        return msgspec.convert(value, shape, strict=True)
    except (msgspec.ValidationError, RecursionError):
        fault = find_fault(value, shape, path) if isinstance(shape, type) else None
        raise fault or invalid(path, "does not have the expected form") from None


def _check_utf8(frame: bytes) -> None:
    if frame.isascii():
        return
    try:
        frame.decode()
    except UnicodeDecodeError:
        raise InvalidUtf8 from None


@dataclass(frozen=True, slots=True)
class Clip:
    """Decoded audio: finite float32 samples in [-1, 1], and how many of them had to be clipped."""

    samples: Samples
    clipped: int


def decode_base64(text: str, param: str) -> bytes:
    """The bytes behind base64 of the standard alphabet with padding; ASCII white space is ignored."""
    try:
        return pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    try:
        return pybase64.b64decode(text.encode("ascii").translate(None, _WHITE_SPACE), validate=True)
    except (binascii.Error, ValueError):
        raise invalid(param, "expected base64 with padding, got something else") from None


def decode_audio(text: str, encoding: AudioFormat, param: str) -> Clip:
    """The samples behind base64 of raw little-endian mono PCM.

    Raises `Refusal` for bad base64, a broken last sample, NaN or infinity, or a peak above `LOUDEST`.
    """
    data = decode_base64(text, param)
    width = 4 if encoding == "f32" else 2
    if len(data) % width:
        raise invalid(
            param, f"expected whole {encoding} samples of {width} bytes, got {len(data)} bytes in all"
        )
    if encoding == "pcm16":
        return Clip(np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768), 0)
    return bounded(np.frombuffer(data, "<f4"), param)


def bounded(samples: Samples, param: str) -> Clip:
    """Checks that `samples` are audio and clips them to [-1, 1]; raises `Refusal`."""
    if not samples.size:
        return Clip(samples, 0)
    # NaN wins both comparisons, so two reductions without a temporary find everything.
    peak = max(float(samples.max()), -float(samples.min()))
    if not np.isfinite(peak):
        raise invalid(param, "expected finite samples, got NaN or infinity")
    if peak > LOUDEST:
        raise invalid(param, f"not float32 PCM in [-1, 1]: the peak is {peak:.3g}")
    if peak <= 1.0:
        return Clip(samples, 0)
    clipped = int(np.count_nonzero(np.abs(samples) > 1.0))
    return Clip(np.clip(samples, -1.0, 1.0), clipped)


_encoder: Final = msgspec.json.Encoder()
_EMPTY_AUDIO: Final = b'"audio":""}'


def encode(event: ServerEvent) -> bytes:
    """`event` as one JSON object, UTF-8."""
    if not isinstance(event, AudioDelta):
        return _encoder.encode(event)
    head = _encoder.encode(msgspec.structs.replace(event, audio=b""))
    return b"".join((head.removesuffix(_EMPTY_AUDIO), b'"audio":"', pybase64.b64encode(event.audio), b'"}'))
