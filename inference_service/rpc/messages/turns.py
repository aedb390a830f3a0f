"""The input of a chat's unit: a conversation with its tools."""

from collections.abc import Iterator

from antiphon.v1 import inference_service_pb2 as pb
from inference_service.interface.engine import ModelInfo
from inference_service.interface.setups import (
    MAX_SLICES,
    ChatMessage,
    ChatSetup,
    Clip,
    Picture,
    TurnInput,
    Video,
)
from inference_service.media.pcm import decode_pcm
from inference_service.rpc.messages.tools import (
    bad,
    check_result,
    read_calls,
    read_tools,
    unsupported,
)
from inference_service.video.plan import MAX_STACK_FRAMES

MAX_VIDEOS = 4
"""Limit of videos in a turn."""

_ROLES = {
    pb.ROLE_SYSTEM: "system",
    pb.ROLE_USER: "user",
    pb.ROLE_ASSISTANT: "assistant",
    pb.ROLE_TOOL: "tool",
}


def turn_input(turn: pb.TurnInput, info: ModelInfo, _: ChatSetup) -> TurnInput:
    """Return a whole conversation; its pictures are still encoded.

    The engine, which knows the tokens, decides whether it fits. Asking a model without a voice for speech is
    no error: its output rate is 0. Raises `UnitRefused` for unsupported content.
    """
    if not turn.messages:
        raise bad("turn.messages", "must hold one message or more")
    if voice := turn.tts.voice.voice_id:
        raise bad("turn.tts.voice.voice_id", f"must be a registered voice; {voice[:64]!r} is not")
    slices = turn.image.max_slice_nums if turn.image.HasField("max_slice_nums") else None
    if slices is not None and not 1 <= slices <= MAX_SLICES:
        raise bad("turn.image.max_slice_nums", f"must be 1 to {MAX_SLICES}, not {slices}")
    parts = [part.WhichOneof("part") for message in turn.messages for part in message.content]
    if (videos := parts.count("video")) > MAX_VIDEOS:
        raise bad("turn.messages", f"must hold at most {MAX_VIDEOS} videos, not {videos}")
    called: set[str] = set()
    return TurnInput(
        messages=tuple(_message(m, f"turn.messages[{i}]", info, called) for i, m in enumerate(turn.messages)),
        speaks=turn.tts.enabled,
        use_tts_template=turn.use_tts_template,
        enable_thinking=turn.enable_thinking,
        omni_mode=turn.omni_mode,
        max_slice_nums=slices,
        use_image_id=turn.image.use_image_id if turn.image.HasField("use_image_id") else None,
        tts_mode=turn.tts.mode,
        language=turn.tts.language,
        tools=read_tools(turn, info),
    )


def _message(message: pb.ChatMessage, path: str, info: ModelInfo, called: set[str]) -> ChatMessage:
    """Read a message; `called` holds the ids of all earlier calls, and those of this message are added."""
    role = _ROLES.get(message.role)
    if role is None:
        raise bad(f"{path}.role", "must be SYSTEM, USER, ASSISTANT or TOOL")
    if role == "tool" and not info.calls_tools:
        raise unsupported(f"{path}.role", "this model calls no tools")
    if not message.content and not message.tool_calls:
        raise bad(f"{path}.content", "must hold one part or more")
    if role == "tool" or message.tool_call_id:
        check_result(message, path, called)
    calls = read_calls(message, path, info) if message.tool_calls else ()
    called.update(call.id for call in calls)
    return ChatMessage(role, tuple(_parts(message, path, info)), calls, message.tool_call_id)


def _parts(message: pb.ChatMessage, path: str, info: ModelInfo) -> Iterator[str | Picture | Clip | Video]:
    for i, content in enumerate(message.content):
        field = f"{path}.content[{i}]"
        match content.WhichOneof("part"):
            case "text":
                yield content.text
            case "image":
                if not info.sees:
                    raise unsupported(field, "this model sees no pictures")
                yield Picture(content.image.data)
            case "audio":
                rate = info.input_sample_rate_hz
                if not rate:
                    raise unsupported(field, "this model hears no audio")
                yield Clip(decode_pcm(content.audio, field=f"{field}.audio", sample_rate_hz=rate))
            case "video":
                if not info.sees:
                    raise unsupported(field, "this model sees no pictures")
                stack = content.video.stack_frames or 1
                if stack > MAX_STACK_FRAMES:
                    raise bad(f"{field}.video.stack_frames", f"must be 1 to {MAX_STACK_FRAMES}, not {stack}")
                yield Video(content.video.data, stack)
            case _:
                raise bad(field, "must hold text, image, audio or video")
