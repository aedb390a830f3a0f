"""Conversion of chat turns to messages of the contract."""

import json
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from antiphon.audio.samples import Samples
from antiphon.protocol.messages import Call, Image, Message, Part, Tool, Video
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb

Choice: TypeAlias = Literal["auto", "none", "required"] | Tool

_ROLES: Final = {
    "system": pb.ROLE_SYSTEM,
    "user": pb.ROLE_USER,
    "assistant": pb.ROLE_ASSISTANT,
    "tool": pb.ROLE_TOOL,
}
_MODES: Final = {
    "auto": pb.TOOL_MODE_AUTO,
    "none": pb.TOOL_MODE_NONE,
    "required": pb.TOOL_MODE_REQUIRED,
}


def audio_chunk(samples: Samples, rate_hz: int) -> common.AudioChunk:
    """Return float32 mono samples of this rate as an `AudioChunk`."""
    return common.AudioChunk(
        encoding=common.AUDIO_ENCODING_PCM_F32LE,
        sample_rate_hz=rate_hz,
        data=samples.astype("<f4", copy=False).tobytes(),
    )


def message(told: Message, rate_hz: int) -> pb.ChatMessage:
    """Convert one entry of a history; its clips must have this rate. Raises `AudioError`."""
    is_empty = told.content == "" and told.calls
    return pb.ChatMessage(
        role=_ROLES[told.role],
        content=[] if is_empty else [_content(part, rate_hz) for part in told.parts],
        tool_calls=[_call(call) for call in told.calls],
        tool_call_id=told.call_id or "",
    )


def add_tools(turn: pb.TurnInput, tools: Sequence[Tool], choice: Choice, *, parallel_calls: bool) -> None:
    """Add the tools that the model may call to a turn."""
    turn.tools.extend(_tool(tool) for tool in tools)
    if isinstance(choice, Tool):
        turn.tool_choice.name = choice.name
    else:
        turn.tool_choice.mode = _MODES[choice]
    turn.parallel_tool_calls = parallel_calls


def _content(part: Part, rate_hz: int) -> pb.Content:
    match part:
        case str():
            return pb.Content(text=part)
        case Image():
            return pb.Content(image=common.Image(data=part.data))
        case Video():
            return pb.Content(video=common.Video(data=part.data, stack_frames=part.stack_frames))
    return pb.Content(audio=audio_chunk(part.samples(rate_hz), rate_hz))


def _call(call: Call) -> pb.ToolCall:
    return pb.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments)


def _tool(tool: Tool) -> pb.Tool:
    parameters = "" if tool.parameters is None else json.dumps(tool.parameters)
    return pb.Tool(name=tool.name, description=tool.description, parameters_json=parameters)
