"""Client frames of `/v1/transcription`, and their refusals."""

from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from ws_adapter.protocol.transcription.events import (
    FALSE_WORDS,
    TRUE_WORDS,
    AudioAppend,
    AudioCommit,
    ClientEvent,
    Code,
    Refused,
    SessionUpdate,
)
from ws_adapter.protocol.wire.codec import CutBase64, EventDecoder, decode_base64
from ws_adapter.protocol.wire.errors import ErrorCode, Refusal
from ws_adapter.protocol.wire.faults import shown

SAMPLE_BYTES: Final = 2

_DECODER: Final[EventDecoder[ClientEvent]] = EventDecoder(ClientEvent)
_GENERIC: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(float_hook=float)


class Rejection(Exception):
    """An event that was rejected: nothing has changed, and the client may send it corrected."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.event = Refused(error=message, code=code)


class ChooseModel(Struct, frozen=True):
    """Use `model` for the utterances that follow."""

    model: str
    trace_context: Any = None
    """The undecoded `trace_context` of the event."""


class Append(Struct, frozen=True):
    """Take audio: whole samples of int16, at least one."""

    pcm: bytes
    trace_context: Any = None
    """The undecoded `trace_context` of the event."""


class Commit(Struct, frozen=True):
    """Begin an utterance, or end it."""

    is_final: bool


TranscriptionCommand: TypeAlias = ChooseModel | Append | Commit


def read_command(frame: bytes, *, drops_input: bool = False) -> TranscriptionCommand:
    """Return the command in a text frame; with `drops_input` there is no room for audio, which is not
    decoded.

    Raises `Rejection` or `InvalidUtf8`.
    """
    try:
        event = _DECODER.decode(frame, sized_only=drops_input)
    except Refusal as refusal:
        raise _rejection(refusal, frame) from None
    match event:
        case SessionUpdate(model=model, trace_context=context):
            if not model:
                raise _no_model()
            return ChooseModel(model, context)
        case AudioAppend(audio=audio, trace_context=context):
            if audio is None:
                raise Rejection(Code.PROCESSING_ERROR, "audio: expected a base64 string, got null or nothing")
            return Append(_pcm(audio), context)
        case AudioCommit(final=final):
            return Commit(_truth(final))


def _pcm(audio: str) -> bytes:
    if isinstance(audio, CutBase64) and audio.data is None:
        raise Rejection(
            Code.BUFFER_FULL, "the server holds as much audio as it can; wait a little and send this again"
        )
    try:
        pcm = decode_base64(audio, "audio")
    except Refusal:
        pcm = b""
    if not pcm or len(pcm) % SAMPLE_BYTES:
        raise Rejection(Code.INVALID_AUDIO, "Invalid audio data")
    return pcm


def _truth(final: bool | int | str) -> bool:
    if not isinstance(final, str):
        return bool(final)
    word = final.lower()
    if word not in TRUE_WORDS | FALSE_WORDS:
        raise Rejection(Code.PROCESSING_ERROR, f"final: expected true or false, got {shown(final)}")
    return word in TRUE_WORDS


def _no_model() -> Rejection:
    return Rejection(Code.INVALID_EVENT, "Missing required field: model")


def _rejection(refusal: Refusal, frame: bytes) -> Rejection:
    """Return a refusal of the decoder in the words of this protocol."""
    match refusal.code, refusal.param:
        case ErrorCode.INVALID_JSON, _:
            return Rejection(Code.INVALID_JSON, "Invalid JSON")
        case _, "type":
            name = _GENERIC.decode(frame).get("type")
            told = "None" if name is None else shown(name).strip('"')
            return Rejection(Code.UNKNOWN_EVENT, f"Unknown event type: {told}")
        case _, "model":
            return _no_model()
        case _, "final":
            value = shown(_GENERIC.decode(frame)["final"])
            return Rejection(Code.PROCESSING_ERROR, f"final: expected true or false, got {value}")
    return Rejection(Code.PROCESSING_ERROR, refusal.message)
