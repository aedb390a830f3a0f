"""The input of a CHAT unit: from the messages of `antiphon.v1` to the engine's plain data."""

from collections.abc import Iterator

from antiphon.semconv import Reason
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.api.engine import ModelInfo
from inference_service.api.setups import ChatMessage, Clip, Picture, TurnInput
from inference_service.errors import UnitRefused
from inference_service.media.pcm import decode_pcm

MAX_SLICES = 9
"""Most slices that a caller may ask a picture to be cut into."""

_ROLES = {pb.ROLE_SYSTEM: "system", pb.ROLE_USER: "user", pb.ROLE_ASSISTANT: "assistant"}


def turn_input(turn: pb.TurnInput, info: ModelInfo) -> TurnInput:
    """A whole conversation; its pictures are still encoded.

    How much of it fits is the engine's to say, which knows its tokens. Speech asked of a model without a
    voice is no error: such a model says that it has no output rate. Raises `UnitRefused` for what the model
    cannot take.
    """
    if not turn.messages:
        raise _bad("turn.messages", "must hold one message or more")
    if voice := turn.tts.voice.voice_id:
        raise _bad("turn.tts.voice.voice_id", f"must be a registered voice; {voice[:64]!r} is not")
    slices = turn.image.max_slice_nums if turn.image.HasField("max_slice_nums") else None
    if slices is not None and not 1 <= slices <= MAX_SLICES:
        raise _bad("turn.image.max_slice_nums", f"must be 1 to {MAX_SLICES}, not {slices}")
    return TurnInput(
        messages=tuple(_message(m, f"turn.messages[{i}]", info) for i, m in enumerate(turn.messages)),
        speaks=turn.tts.enabled,
        use_tts_template=turn.use_tts_template,
        enable_thinking=turn.enable_thinking,
        omni_mode=turn.omni_mode,
        max_slice_nums=slices,
        use_image_id=not turn.image.HasField("use_image_id") or turn.image.use_image_id,
    )


def _message(message: pb.ChatMessage, path: str, info: ModelInfo) -> ChatMessage:
    role = _ROLES.get(message.role)
    if role is None:
        raise _bad(f"{path}.role", "must be SYSTEM, USER or ASSISTANT")
    if not message.content:
        raise _bad(f"{path}.content", "must hold one part or more")
    return ChatMessage(role, tuple(_parts(message, path, info)))


def _parts(message: pb.ChatMessage, path: str, info: ModelInfo) -> Iterator[str | Picture | Clip]:
    for i, content in enumerate(message.content):
        field = f"{path}.content[{i}]"
        match content.WhichOneof("part"):
            case "text":
                yield content.text
            case "image":
                if not info.sees:
                    raise _unsupported(field, "this model sees no pictures")
                yield Picture(content.image.data)
            case "audio":
                rate = info.input_sample_rate_hz
                if not rate:
                    raise _unsupported(field, "this model hears no audio")
                yield Clip(decode_pcm(content.audio, field=f"{field}.audio", sample_rate_hz=rate))
            case _:
                raise _bad(field, "must hold text, image or audio")


def _bad(field: str, problem: str) -> UnitRefused:
    return UnitRefused(Reason.PARAMS_INVALID, f"{field} {problem}.", field)


def _unsupported(field: str, problem: str) -> UnitRefused:
    return UnitRefused(Reason.CONTENT_UNSUPPORTED, f"{field}: {problem}.", field)
