"""Conversion of a caller's requests: bytes to messages, and messages to the engine's types.

Small messages are decoded on the event loop, large ones in a thread.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from antiphon.contract import Reason
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.config.sampling import unit_overrides, unknown_id_problem
from inference_service.errors import BadField, PayloadInvalid, UnitRefused
from inference_service.interface.engine import Failure, ModelInfo
from inference_service.interface.setups import (
    MAX_SLICES,
    ChatSetup,
    Content,
    DuplexSetup,
    SessionSetup,
    StandaloneText,
    StreamInput,
    TextPurpose,
    TokensSetup,
    TranscribeSetup,
    TurnInput,
    UnitInput,
)
from inference_service.media.image import MAX_FRAMES
from inference_service.media.pcm import decode_pcm
from inference_service.rpc.messages.records import check_record, unit_record
from inference_service.rpc.messages.turns import turn_input
from inference_service.session.units import Generate, Rewind, Stream

LARGE = 1 << 18
"""Bytes from which a message is not decoded on the event loop: four seconds of sound."""
MOST_PARTS = 1 << 14
"""Limit of fields of a large message, nested ones included."""
BYTES_PER_PART = 1 << 8
"""Bytes of a packed list of numbers that count as one field."""
_THREADS = 2

REQUESTS: dict[Stream, type[Message]] = {
    Stream.PREFILL: pb.PrefillRequest,
    Stream.GENERATE: pb.GenerateRequest,
    Stream.FINALIZE: pb.FinalizeRequest,
}
"""The type of the requests on each stream."""

PURPOSES = {
    pb.TEXT_PURPOSE_INSTRUCTIONS: TextPurpose.INSTRUCTIONS,
    pb.TEXT_PURPOSE_THINKING: TextPurpose.THINKING,
    pb.TEXT_PURPOSE_COMMENTARY: TextPurpose.COMMENTARY,
    pb.TEXT_PURPOSE_TOOL_RESULT: TextPurpose.TOOL_RESULT,
}
"""Purposes of a text of a unit."""

T = TypeVar("T")


class Decoder(Generic[T]):
    """A decoder of large requests, with a small pool of threads. Its caller waits, which keeps the order."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "decode")

    async def read(
        self, stream: Stream, data: bytes, make: Callable[[Message], T]
    ) -> tuple[Message, Callable[[], T]]:
        """Return the message in `data`, and a function that returns the result of `make` or raises its error.

        `make` was called already. Raises `PayloadInvalid` for bytes that are no such message, or have too
        many fields.
        """
        return await asyncio.get_running_loop().run_in_executor(self._pool, _read_large, stream, data, make)


def _read_large(stream: Stream, data: bytes, make: Callable[[Message], T]) -> tuple[Message, Callable[[], T]]:
    _require_few_parts(REQUESTS[stream].DESCRIPTOR, data)
    request, made = decoded(REQUESTS[stream].FromString, data), Future[T]()
    try:
        made.set_result(make(request))
    except Exception as error:
        made.set_exception(error.with_traceback(None))
    return request, made.result


def decoded(parse: Callable[[Any], Message], data: bytes | bytearray | memoryview) -> Message:
    """Return the message in `data`. Raises `PayloadInvalid` for invalid bytes."""
    try:
        return parse(data)
    except DecodeError:
        raise PayloadInvalid(BadField("request", "is not a message of antiphon.v1")) from None


# --------------------------------------------------------------------------------------- limits of fields


def _require_few_parts(kind: Any, data: bytes) -> None:
    """Raise `PayloadInvalid` if `data` has too many fields.

    Protobuf parses with the GIL held: 32 MiB of empty messages take most of a second and 1 GiB of memory.
    This check reads only tags and lengths, of at most `MOST_PARTS` fields.
    """
    left, todo = MOST_PARTS, [(kind, 0, len(data))]
    while todo:
        message, at, end = todo.pop()
        while at < end:
            left -= 1
            if left < 0:
                problem = (
                    f"has more than {MOST_PARTS} parts; {BYTES_PER_PART} bytes of numbers count as one part"
                )
                raise PayloadInvalid(BadField("request", problem))
            tag, at = _varint(data, at)
            field = message.fields_by_number.get(tag >> 3)
            match tag & 7:
                case 0:
                    _, at = _varint(data, at)
                case 1:
                    at += 8
                case 5:
                    at += 4
                case 2:
                    size, at = _varint(data, at)
                    if field is not None and field.message_type is not None:
                        todo.append((field.message_type, at, min(end, at + size)))
                    elif field is not None and field.type not in _BYTES:
                        left -= size // BYTES_PER_PART
                    at += size
                case _:  # no such type since proto2; the parser refuses it
                    raise PayloadInvalid(BadField("request", "is not a message of antiphon.v1"))


_BYTES = (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING)
_LONGEST_VARINT = 10


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at index `at`, and the index after it."""
    value = 0
    for i, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise PayloadInvalid(BadField("request", "is not a message of antiphon.v1"))


# ------------------------------------------------------------------------------------------ input of a unit


def content(request: pb.PrefillRequest, setup: SessionSetup, info: ModelInfo) -> Content:
    """Return the input of a unit for a session of this kind.

    Raises `UnitRefused` for unusable content, `PayloadInvalid` for the input of another mode.
    """
    if request.HasField("recorded"):
        check_record(request.recorded, setup, info)
    wanted, unit, make = _INPUTS[type(setup)]
    kind = request.WhichOneof("payload")
    if kind != wanted:
        problem = f"holds `{kind}`" if kind else "is missing"
        raise PayloadInvalid(BadField("payload", f"{unit} unit needs `{wanted}`; it {problem}"))
    made = make(getattr(request, wanted), info, setup)
    if request.HasField("recorded") and isinstance(made, UnitInput):
        return replace(made, recorded=unit_record(request.recorded))
    if request.HasField("recorded") and isinstance(made, TurnInput):
        if made.speaks:
            why = "recorded: a spoken answer cannot go on in another session."
            raise UnitRefused(Reason.CONTENT_UNSUPPORTED, why, "recorded")
        return replace(made, begun=tuple(request.recorded.sampled_ids))
    return made


def generate(request: pb.GenerateUnit, setup: SessionSetup, info: ModelInfo) -> Generate:
    """Return how to run the unit; with a refusal if its settings are invalid."""
    if not request.force_listen and not request.HasField("sampling"):
        return _USUAL
    try:
        if request.force_listen and not setup.is_duplex:
            raise UnitRefused(
                Reason.PARAMS_INVALID,
                "run.force_listen is for AUDIO and VIDEO sessions only.",
                "run.force_listen",
            )
        return Generate(request.force_listen, unit_overrides(request.sampling, "run.sampling", setup, info))
    except UnitRefused as refused:
        return Generate(request.force_listen, refusal=refused.failure)


_USUAL = Generate()


def rewind(request: pb.GenerateRequest, setup: SessionSetup) -> Rewind:
    """Return the rewind; with a refusal if the session cannot rewind."""
    if not setup.is_duplex:
        problem = "rewind: only AUDIO and VIDEO sessions speak while they listen."
        return Rewind(request.unit, refusal=Failure(Reason.CONTENT_UNSUPPORTED, problem, "rewind"))
    heard = request.rewind.heard_samples if request.rewind.HasField("heard_samples") else None
    return Rewind(request.unit, heard)


def unit_input(duplex: pb.DuplexInput, info: ModelInfo, setup: DuplexSetup) -> UnitInput:
    """Return the content of a duplex unit; its pictures are still encoded.

    Raises `UnitRefused`.
    """
    if duplex.frames:
        _check_frames(duplex, setup.sees)
    if not duplex.HasField("audio"):
        raise UnitRefused(Reason.AUDIO_INVALID, "duplex.audio is missing.", "duplex.audio")
    pcm = decode_pcm(
        duplex.audio,
        field="duplex.audio",
        sample_rate_hz=info.format_of(setup).sample_rate_hz,
        max_samples=info.format_of(setup).samples,
    )
    if not duplex.frames and not duplex.texts:
        return UnitInput(pcm)
    slices = duplex.max_slice_nums if duplex.HasField("max_slice_nums") else 1
    frames = tuple(frame.data for frame in duplex.frames)
    texts = tuple(_text(text, f"duplex.texts[{i}]", info) for i, text in enumerate(duplex.texts))
    return UnitInput(pcm, frames, slices, texts)


def _text(given: pb.StandaloneText, path: str, info: ModelInfo) -> StandaloneText:
    purpose = PURPOSES.get(given.purpose)
    if purpose is None:
        field = f"{path}.purpose"
        raise UnitRefused(Reason.PARAMS_INVALID, f"{field} must be one of TextPurpose.", field)
    if purpose not in info.text_purposes:
        problem = f"this model reads no {purpose.value} while it listens"
        raise UnitRefused(Reason.CONTENT_UNSUPPORTED, f"{path}: {problem}.", path)
    if not given.text:
        raise UnitRefused(Reason.PARAMS_INVALID, f"{path}.text is empty.", f"{path}.text")
    return StandaloneText(purpose, given.text)


def _check_frames(duplex: pb.DuplexInput, sees: bool) -> None:
    if not sees:
        raise UnitRefused(
            Reason.CONTENT_UNSUPPORTED, "duplex.frames: an AUDIO session sees no pictures.", "duplex.frames"
        )
    if len(duplex.frames) > MAX_FRAMES:
        problem = f"must hold at most {MAX_FRAMES} pictures, not {len(duplex.frames)}"
        raise UnitRefused(Reason.IMAGE_INVALID, f"duplex.frames {problem}.", "duplex.frames")
    most = duplex.max_slice_nums
    if duplex.HasField("max_slice_nums") and not 1 <= most <= MAX_SLICES:
        problem = f"must be 1 to {MAX_SLICES}, not {most}"
        raise UnitRefused(Reason.PARAMS_INVALID, f"duplex.max_slice_nums {problem}.", "duplex.max_slice_nums")


def token_input(stream: pb.StreamInput, info: ModelInfo, _: SessionSetup) -> StreamInput:
    """Return a chunk of ids or text. Raises `UnitRefused`."""
    given, text = stream.token_ids.ids, stream.text
    if stream.WhichOneof("chunk") == "audio":
        raise UnitRefused(
            Reason.CONTENT_UNSUPPORTED,
            "stream.audio: a TOKENS session takes token_ids or text.",
            "stream.audio",
        )
    problem: str | None
    _check_presence(stream, is_empty=not given and not text, kinds="token_ids or text")
    if len(given) > info.context_limit:
        problem = f"has {len(given)} ids; the context holds {info.context_limit}"
        raise UnitRefused(Reason.INPUT_TOO_LONG, f"stream.token_ids.ids {problem}.", "stream.token_ids.ids")
    ids = tuple(given)
    if problem := unknown_id_problem(ids, info.vocabulary):
        raise UnitRefused(Reason.PARAMS_INVALID, f"stream.token_ids.ids {problem}.", "stream.token_ids.ids")
    return StreamInput(ids or text or None, stream.begin_utterance, stream.end_utterance)


def speech_input(stream: pb.StreamInput, info: ModelInfo, _: SessionSetup) -> StreamInput:
    """Return a chunk of audio. Raises `UnitRefused`."""
    kind = stream.WhichOneof("chunk")
    if kind in ("token_ids", "text"):
        raise UnitRefused(
            Reason.CONTENT_UNSUPPORTED, f"stream.{kind}: a TRANSCRIBE session takes audio.", f"stream.{kind}"
        )
    _check_presence(stream, is_empty=kind is None, kinds="audio")
    pcm = None
    if kind is not None:
        pcm = decode_pcm(stream.audio, field="stream.audio", sample_rate_hz=info.input_sample_rate_hz)
    return StreamInput(pcm, stream.begin_utterance, stream.end_utterance)


def _check_presence(stream: pb.StreamInput, *, is_empty: bool, kinds: str) -> None:
    if is_empty and not stream.end_utterance:
        raise UnitRefused(
            Reason.PARAMS_INVALID,
            f"stream.chunk is empty: send {kinds}, or end_utterance.",
            "stream.chunk",
        )


_INPUTS: dict[type[SessionSetup], tuple[str, str, Callable[[Any, ModelInfo, Any], Content]]] = {
    DuplexSetup: ("duplex", "an AUDIO or VIDEO", unit_input),
    ChatSetup: ("turn", "a CHAT", turn_input),
    TokensSetup: ("stream", "a TOKENS", token_input),
    TranscribeSetup: ("stream", "a TRANSCRIBE", speech_input),
}
"""By kind of session: the payload field of its units, its name in errors, and the reader of the payload."""
