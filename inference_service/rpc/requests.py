"""What a unit brings, of each mode: from the messages of `antiphon.v1` to the engine's plain data."""

from antiphon.semconv import Reason
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.api.engine import ModelInfo
from inference_service.api.setups import (
    ChatSetup,
    Content,
    DuplexSetup,
    SessionSetup,
    StreamInput,
    TokensSetup,
    TranscribeSetup,
    UnitInput,
)
from inference_service.config.sampling import unknown_id_problem
from inference_service.errors import BadField, PayloadInvalid, UnitRefused
from inference_service.media.image import MAX_FRAMES
from inference_service.media.pcm import decode_pcm
from inference_service.rpc.chat_requests import MAX_SLICES, turn_input


def content(request: pb.PrefillRequest, setup: SessionSetup, info: ModelInfo) -> Content:
    """The input of a unit of such a session.

    Raises `UnitRefused` for content that cannot be used, `PayloadInvalid` for the input of another mode.
    """
    match setup:
        case DuplexSetup():
            _expect(request, "duplex", "an AUDIO or VIDEO")
            return unit_input(request.duplex, info, sees=setup.sees)
        case ChatSetup():
            _expect(request, "turn", "a CHAT")
            return turn_input(request.turn, info)
        case TokensSetup():
            _expect(request, "stream", "a TOKENS")
            return token_input(request.stream, info)
        case TranscribeSetup():
            _expect(request, "stream", "a TRANSCRIBE")
            return speech_input(request.stream, info)


def _expect(request: pb.PrefillRequest, wanted: str, unit: str) -> None:
    kind = request.WhichOneof("payload")
    if kind != wanted:
        problem = f"holds `{kind}`" if kind else "is missing"
        raise PayloadInvalid(BadField("payload", f"{unit} unit needs `{wanted}`; it {problem}"))


def unit_input(duplex: pb.DuplexInput, info: ModelInfo, *, sees: bool) -> UnitInput:
    """The content of a duplex unit; its pictures, of a session that `sees`, are still encoded.

    Raises `UnitRefused`.
    """
    if duplex.frames:
        _check_frames(duplex, sees)
    if not duplex.HasField("audio"):
        raise UnitRefused(Reason.AUDIO_INVALID, "duplex.audio is missing.", "duplex.audio")
    pcm = decode_pcm(
        duplex.audio,
        field="duplex.audio",
        sample_rate_hz=info.input_sample_rate_hz,
        max_samples=round(info.unit_seconds * info.input_sample_rate_hz),
    )
    slices = duplex.max_slice_nums if duplex.HasField("max_slice_nums") else 1
    return UnitInput(pcm, tuple(frame.data for frame in duplex.frames), slices)


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


def token_input(stream: pb.StreamInput, info: ModelInfo) -> StreamInput:
    """A chunk of ids or text. Raises `UnitRefused`."""
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


def speech_input(stream: pb.StreamInput, info: ModelInfo) -> StreamInput:
    """A chunk of audio. Raises `UnitRefused`."""
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
