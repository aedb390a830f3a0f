"""The chat of `/ws/chat` as pure data: requests to JSON text, JSON text to typed events."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from antiphon.audio.samples import Samples, from_base64, to_base64
from antiphon.protocol.duplex import queued, reference_audio, resume_offer
from antiphon.protocol.events import (
    Answer,
    AudioDelta,
    CallDelta,
    ChatEvent,
    ErrorEvent,
    Prefilled,
    Queued,
    TextDelta,
    ThinkingDelta,
)
from antiphon.protocol.fields import Fields
from antiphon.protocol.messages import Call, Clip, Image, Message, Part, Tool, Video


class GenerationConfig(TypedDict, total=False):
    """The sampling settings of a chat answer; a missing key keeps the server's default."""

    max_new_tokens: int
    """The largest number of text tokens, 1 to 4096; the default is 512."""
    temperature: float
    """The sampling temperature; 0 takes the likeliest token each time."""
    top_p: float
    length_penalty: float
    """The length penalty; values above 1 give longer answers."""


class ImageConfig(TypedDict, total=False):
    """The preprocessing of a chat's pictures; a missing key keeps the server's default."""

    max_slice_nums: int
    """The largest number of slices of a picture, 1 to 9."""
    use_image_id: bool
    """Whether each picture is numbered in the prompt."""


@dataclass(frozen=True)
class Speech:
    """The settings of a spoken answer; None keeps the server's default."""

    voice: Clip | str | None = None
    """Reference audio (0.5 s to 30 s at 16 kHz, or a WAV file), or the name of a voice of the server."""
    mode: str | None = None
    """`default`, `audio_assistant`, `omni`, `audio_roleplay` or `voice_cloning`."""
    language: str | None = None
    """The language as a BCP 47 tag such as `en`."""


def request(
    messages: Sequence[Message],
    *,
    streaming: bool,
    generation: GenerationConfig | None,
    speech: Speech | None,
    images: ImageConfig | None,
    omni_mode: bool,
    enable_thinking: bool,
    tools: Sequence[Tool] = (),
    tool_choice: str | Tool = "auto",
    parallel_tool_calls: bool = True,
) -> str:
    """Return the only message that a client sends. Raises `AudioError` for a voice that cannot be sent."""
    return json.dumps(
        {
            "messages": [_message(message) for message in messages],
            "streaming": streaming,
            "generation": dict(generation or {}),
            "tts": _tts(speech),
            "image": dict(images or {}),
            "omni_mode": omni_mode,
            "enable_thinking": enable_thinking,
            **(_tools(tools, tool_choice, parallel_tool_calls=parallel_tool_calls) if tools else {}),
        }
    )


def _tools(tools: Sequence[Tool], choice: str | Tool, *, parallel_tool_calls: bool) -> Mapping[str, object]:
    named = {"type": "function", "function": {"name": choice.name}} if isinstance(choice, Tool) else choice
    return {
        "tools": [{"type": "function", "function": _function(tool)} for tool in tools],
        "tool_choice": named,
        "parallel_tool_calls": parallel_tool_calls,
    }


def _function(tool: Tool) -> Mapping[str, object]:
    function: dict[str, object] = {"name": tool.name, "description": tool.description}
    return function if tool.parameters is None else {**function, "parameters": dict(tool.parameters)}


def _message(message: Message) -> Mapping[str, object]:
    told: dict[str, object] = {"role": message.role, "content": _content(message)}
    if message.calls:
        told["tool_calls"] = [
            {"id": it.id, "type": "function", "function": {"name": it.name, "arguments": it.arguments}}
            for it in message.calls
        ]
    if message.call_id is not None:
        told["tool_call_id"] = message.call_id
    return told


class Decoder:
    """A decoder of one answer's server frames; it collects the audio, which arrives in pieces.

    Unknown event types and fields are skipped: a newer server may send them.
    """

    def __init__(self) -> None:
        self._audio: list[Samples] = []

    def decode(self, frame: str | bytes) -> list[ChatEvent | Queued | ErrorEvent]:
        """Decode one frame. Raises `ProtocolError` if it breaks the protocol."""
        fields = Fields.of(frame)
        match fields.text("type"):
            case "queued" | "queue_update":
                return [queued(fields)]
            case "prefill_done":
                offer = resume_offer(fields.object("resume"))
                return [Prefilled(fields.integer("input_tokens") or 0, offer)]
            case "chunk":
                return self._chunk(fields)
            case "done":
                return [self._answer(fields)]
            case "error":
                code = fields.text("code") or "unknown"
                return [ErrorEvent(code, fields.text("error") or "", fields.text("param"))]
        return []

    def _chunk(self, fields: Fields) -> list[ChatEvent | Queued | ErrorEvent]:
        text, audio = fields.text("text_delta"), fields.text("audio_data")
        events: list[ChatEvent | Queued | ErrorEvent] = []
        if thinking := fields.text("thinking_delta"):
            events.append(ThinkingDelta(thinking))
        if text:
            events.append(TextDelta(text))
        if audio:
            self._audio.append(from_base64(audio))
            events.append(AudioDelta(self._audio[-1]))
        call = fields.object("tool_call")
        if call.values:
            events.append(
                CallDelta(
                    call.integer("index") or 0,
                    call.text("id") or "",
                    call.text("name") or "",
                    call.text("arguments") or "",
                    complete=call.boolean("complete") or False,
                )
            )
        return events

    def _answer(self, fields: Fields) -> Answer:
        audio = fields.text("audio_data")
        if audio:
            self._audio.append(from_base64(audio))
        return Answer(
            text=fields.text("text") or "",
            samples=np.concatenate([np.zeros(0, np.float32), *self._audio]),
            input_tokens=fields.integer("input_tokens") or 0,
            generated_tokens=fields.integer("generated_tokens") or 0,
            recording_session_id=fields.text("recording_session_id"),
            unsupported_fields=fields.texts("unsupported_fields"),
            calls=tuple(map(_call, fields.objects("tool_calls"))),
            thinking=fields.text("thinking") or "",
        )


def _call(fields: Fields) -> Call:
    function = fields.object("function")
    return Call(fields.text("id") or "", function.text("name") or "", function.text("arguments") or "")


def _content(message: Message) -> str | list[Mapping[str, object]]:
    return message.content if isinstance(message.content, str) else [_part(part) for part in message.parts]


def _part(part: Part) -> Mapping[str, object]:
    match part:
        case str():
            return {"type": "text", "text": part}
        case Image():
            return {"type": "image", "data": base64.b64encode(part.data).decode("ascii")}
        case Clip():
            return {"type": "audio", "data": _audio(part), "sample_rate": part.rate_hz}
        case Video():
            data = base64.b64encode(part.data).decode("ascii")
            return {"type": "video", "data": data, "stack_frames": part.stack_frames}


def _audio(clip: Clip) -> str:
    if isinstance(clip.audio, bytes):
        return base64.b64encode(clip.audio).decode("ascii")
    return to_base64(clip.audio)


def _tts(speech: Speech | None) -> Mapping[str, object]:
    if speech is None:
        return {"enabled": False}
    tts: dict[str, object] = {"enabled": True}
    if isinstance(speech.voice, str):
        tts["ref_audio_path"] = speech.voice
    elif speech.voice is not None:
        tts["ref_audio_data"] = reference_audio(speech.voice)
    for name, value in (("mode", speech.mode), ("language", speech.language)):
        if value is not None:
            tts[name] = value
    return tts
