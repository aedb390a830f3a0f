"""Test values for each field of each dialect, which differ from the defaults."""

import base64
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inference_service.interface.engine import ModelInfo
from tests.support.drawing import encoded, picture
from tests.support.videos import short
from ws_adapter.protocol.core.config import Mode
from ws_adapter.web.routes import Dialect, Selection

Event = dict[str, Any]
Patch = Event
"""A merge patch (RFC 7396)."""


def f32(level: float = 0.1, seconds: float = 1.0) -> str:
    """Base64 of float32 at 16 kHz."""
    return base64.b64encode(np.full(round(seconds * 16_000), level, "<f4").tobytes()).decode()


def s16(level: int = 1000, samples: int = 27_000) -> str:
    return base64.b64encode(np.full(samples, level, "<i2").tobytes()).decode()


PICTURE = base64.b64encode(encoded(picture("red", "circle", (900, 700)), "JPEG")).decode()
"""Large enough to be cut into slices."""
OTHER = base64.b64encode(encoded(picture("blue", "square", (900, 700)), "JPEG")).decode()
VIDEO = base64.b64encode(short()).decode()
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Of a city."}}

VALUES: dict[str, Any] = {
    # Settings of full duplex.
    "generate_audio": False,
    "force_listen_count": 7,
    "max_new_speak_tokens_per_chunk": 9,
    "decode_mode": "greedy",
    "temperature": 1.3,
    "top_k": 5,
    "top_p": 0.5,
    "text_repetition_penalty": 1.3,
    "text_repetition_window_size": 64,
    "length_penalty": 1.7,
    "listen_prob_scale": 2.0,
    "listen_top_k": 3,
    "tts_temperature": 0.4,
    "max_slice_nums": 4,
    # These fields configure a session.
    "system_prompt": "Be brief.",
    "prefix_system_prompt": "Be brief.",
    "instructions": "Be brief.",
    "seed": 11,
    "model": "another",
    "mode": "another",
    "tools": [TOOL],
    "use_tts": False,
    "deferred_finalize": False,
    "trace_context": TRACE,
    "reason": "enough",
    "timeout": 30,
    # Voices.
    **dict.fromkeys(
        ("ref_audio_base64", "ref_audio", "tts_ref_audio_base64", "tts_ref_audio", "ref_audio_data"), f32(0.2)
    ),
    "ref_audio_path": "anna",
    # Input.
    "audio": f32(0.2),
    "audio_base64": f32(0.2),
    "audio_data": f32(0.2),
    "force_listen": True,
    "input_id": "in-7",
    "format": "pcm16",
    **dict.fromkeys(("data", "base64", "video_frame", "frame_base64", "frame", "image"), OTHER),
    # Chat.
    "role": "assistant",
    "text": "Name another.",
    "tool_call_id": "call_1",
    "streaming": False,
    "max_new_tokens": 33,
    "enabled": True,
    "language": "de",
    "use_tts_template": True,
    "use_image_id": False,
    "omni_mode": True,
    "enable_thinking": True,
    "name": "time",
    "description": "Of a clock.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "arguments": '{"city": "Bern"}',
    "id": "call_1",
    "tool_choice": "required",
    "parallel_tool_calls": False,
    # Live.
    "voice": "alloy",
    "acknowledgement_delay_ms": 300,
    "status": "completed",
    "store": True,
    "triggers": [1],
    "client": {"type": "browser"},
    "safety_identifier": "user-1",
    "event_id": "mine",
    "delegation_id": "d-1",
    "content": "Speak of the weather.",
    "rate": 16_000,
    "final": True,
}

NO_SETTINGS = {
    ("earlier", "SessionClose", "reason"): "said of the client itself: the dialect always answers `stopped`",
    ("live", "SessionStart", "session.input[].content[].type"): "two spellings of one thing",
    ("live", "SessionStart", "session.input[].id"): "names a message that is not referred to",
    ("live", "SessionStart", "session.input[].status"): "what was said before is said either way",
    ("live", "AudioAppend", "event_id"): "names the event where it is refused",
    ("live", "SessionClose", "event_id"): "names the event where it is refused",
    ("live", "InstructionsAppend", "event_id"): "names the event where it is refused or acknowledged",
    ("live", "ThinkingAppend", "event_id"): "names the event where it is refused or acknowledged",
    ("live", "CommentaryAppend", "event_id"): "names the event where it is refused or acknowledged",
}

TOLD = {"input.max_slice_nums", "input.hints.max_slice_nums", "max_slice_nums"}
"""Settings of a single input: the figures of its unit tell what became of them."""


@dataclass(frozen=True)
class Script:
    """A conversation in a dialect: `events` by their names, in which each comes behind those in `before`.

    With `after` an event only tells once those are sent behind it.
    """

    dialect: Dialect
    modes: tuple[Mode, ...]
    events: dict[str, Event]
    before: dict[str, tuple[str, ...]] = field(default_factory=dict)
    after: dict[str, tuple[str, ...]] = field(default_factory=dict)
    patches: dict[str, tuple[Patch, Patch]] = field(default_factory=dict)
    """For a path: how the event is without its value, and with it."""

    def selection(self, mode: Mode) -> Selection:
        return Selection(self.dialect, mode)


_LIVE = (
    *("SessionUpdate", "AudioAppend", "AudioMute", "AudioUnmute"),
    *("InstructionsAppend", "ThinkingAppend", "CommentaryAppend", "SessionClose"),
)
ALIASES = (
    frozenset({"audio", "audio_base64", "audio_data"}),
    frozenset({"video_frames", "frame_base64_list", "frames", "video_frame", "frame_base64"})
    | {"frame", "image", "data"},
)
"""Names of one thing: where one is given, the event is without the others."""


def scripts(info: ModelInfo) -> dict[str, Script]:
    frames = {"video_frames": [PICTURE]} if info.sees else {}
    return {
        "realtime": Script(
            Dialect.REALTIME,
            (Mode.AUDIO, Mode.VIDEO),
            {
                "SessionInit": {"type": "session.init", "payload": {}},
                "InputAppend": {"type": "input.append", "input": {"audio": f32(), **frames}},
                "SessionClose": {"type": "session.close"},
            },
            before={"InputAppend": ("SessionInit",), "SessionClose": ("SessionInit",)},
            after={"SessionInit": ("InputAppend",)},
            patches={
                "payload.mode": ({}, {"payload": {"mode": "chat"}}),
                "input.sample_rate": ({}, {"input": {"sample_rate": 24_000}}),
                "input.sample_rate_hz": ({}, {"input": {"sample_rate_hz": 24_000}}),
            },
        ),
        "earlier": Script(
            Dialect.REALTIME,
            (Mode.AUDIO, Mode.VIDEO),
            {
                "SessionUpdate": {"type": "session.update", "session": {"instructions": "Help."}},
                "AudioAppend": {"type": "input_audio_buffer.append", "audio": f32(), **frames},
                "SessionClose": {"type": "session.close"},
            },
            before={"AudioAppend": ("SessionUpdate",), "SessionClose": ("SessionUpdate",)},
            after={"SessionUpdate": ("AudioAppend",)},
        ),
        "duplex": Script(
            Dialect.DUPLEX,
            (Mode.AUDIO, Mode.VIDEO),
            {
                "Prepare": {"type": "prepare"},
                "AudioChunk": {"type": "audio_chunk", "audio_base64": f32(), **frames},
                "VideoFrame": {"type": "video_frame", "frame_base64": PICTURE},
                "Pause": {"type": "pause"},
                "Plain": {"type": "audio_chunk", "audio_base64": f32()},
            },
            before=dict.fromkeys(("AudioChunk", "VideoFrame", "Pause"), ("Prepare",)),
            after={"Prepare": ("AudioChunk",), "VideoFrame": ("Plain",)},
        ),
        "chat": _chat("", Script(Dialect.CHAT, (Mode.CHAT,), {"ChatRequest": _request(info)})),
        "realtime_chat": _chat(
            "input.",
            Script(
                Dialect.REALTIME,
                (Mode.CHAT,),
                {
                    "SessionInit": {"type": "session.init", "payload": {}},
                    "TurnAppend": {"type": "input.append", "input": _request(info)},
                    "SessionClose": {"type": "session.close"},
                    "Spoken": {"type": "input.append", "input": _request(info) | {"tts": {"enabled": True}}},
                },
                before={"TurnAppend": ("SessionInit",), "SessionClose": ("SessionInit",)},
                after={"SessionInit": ("Spoken",)},
            ),
        ),
        "transcription": Script(
            Dialect.TRANSCRIPTION,
            (Mode.TRANSCRIPTION,),
            {
                "SessionUpdate": {"type": "session.update", "model": info.name},
                "Begin": {"type": "input_audio_buffer.commit"},
                "AudioAppend": {"type": "input_audio_buffer.append", "audio": s16()},
                "AudioCommit": {"type": "input_audio_buffer.commit", "final": False},
            },
            before={
                "AudioAppend": ("SessionUpdate", "Begin"),
                "AudioCommit": ("SessionUpdate", "Begin", "AudioAppend"),
            },
            after={"SessionUpdate": ("Begin", "AudioAppend")},
            patches={"audio": ({}, {"audio": s16(2000)})},
        ),
        "live": Script(
            Dialect.LIVE,
            (Mode.AUDIO,),
            _live_events(info),
            before=dict.fromkeys(_LIVE, ("SessionStart",)),
            after=dict.fromkeys(("SessionStart", *_LIVE[2:7]), ("Second",)),
            patches=_live_patches(info),
        ),
    }


def _request(info: ModelInfo) -> Event:
    parts: list[Event] = [{"type": "text", "text": "Name a prime."}, {"type": "text", "text": "Now."}]
    if info.sees:
        parts.append({"type": "image", "data": PICTURE})
    return {"messages": [{"role": "user", "content": parts}], "tts": {"enabled": False}}


def _chat(root: str, script: Script) -> Script:
    """The same, with what is special about the fields of a request."""

    def request(*parts: Event, **message: Any) -> Patch:
        inner: Patch = {"messages": [{"role": "user", "content": list(parts) or "Hello", **message}]}
        return {"input": inner} if root else inner

    def fields(**given: Any) -> Patch:
        return {"input": given} if root else given

    clip = {"type": "audio", "data": f32(seconds=1.0)}
    seen = {"type": "video", "data": VIDEO}
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    script.patches.update(
        {
            f"{root}messages[].content[].data": (request(clip), request({"type": "audio", "data": f32(0.3)})),
            f"{root}messages[].content[].sample_rate": (request(clip), request(clip | {"sample_rate": 8000})),
            f"{root}messages[].content[].stack_frames": (request(seen), request(seen | {"stack_frames": 3})),
            f"{root}tts.mode": ({}, fields(tts={"mode": "audio_assistant"})),
            "payload.mode": ({}, {"payload": {"mode": "audio"}}),
        }
    )
    for name in ("id", "function.name", "function.arguments"):
        script.patches[f"{root}messages[].tool_calls[].{name}"] = (request(), request(tool_calls=[call]))
    for name in ("function.name", "function.description", "function.parameters"):
        script.patches[f"{root}tools[].{name}"] = ({}, fields(tools=[TOOL]))
    named = {"type": "function", "function": {"name": "weather"}}
    script.patches[f"{root}tool_choice.function.name"] = ({}, fields(tools=[TOOL], tool_choice=named))
    script.patches[f"{root}parallel_tool_calls"] = ({}, fields(tools=[TOOL], parallel_tool_calls=False))
    return script


def _live_events(info: ModelInfo) -> dict[str, Event]:
    return {
        "SessionStart": {"type": "session.start", "session": {"model": info.name}},
        "SessionUpdate": {"type": "session.update", "session": {}},
        "AudioAppend": {"type": "session.input_audio.append", "audio": s16()},
        "AudioMute": {"type": "session.input_audio.mute"},
        "AudioUnmute": {"type": "session.input_audio.unmute"},
        **{
            name: {"type": f"session.{kind}.append", "content": content, "delegation_id": None}
            for name, kind, content in (
                ("InstructionsAppend", "instructions", "Be brief."),
                ("ThinkingAppend", "thinking", "It rains."),
                ("CommentaryAppend", "commentary", "Greet the user."),
            )
        },
        "SessionClose": {"type": "session.close"},
        "Second": {"type": "session.input_audio.append", "audio": s16()},
    }


def _live_patches(info: ModelInfo) -> dict[str, tuple[Patch, Patch]]:
    def start(**session: Any) -> Patch:
        return {"session": session}

    said = {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
    other = {"role": "user", "content": [{"type": "input_text", "text": "Bye"}]}
    pcm = {"format": {"type": "audio/pcm", "rate": 16_000}}
    return {
        "session.audio.format.rate": ({}, start(audio=pcm)),
        "session.audio.output.voice.id": ({}, start(audio={"output": {"voice": {"id": "anna"}}})),
        "session.delegation.acknowledgement_delay_ms": (
            start(delegation={"type": "client"}),
            start(delegation={"type": "client", "acknowledgement_delay_ms": 300}),
        ),
        "session.delegation.type": ({}, start(delegation={"type": "responses"})),
        "session.delegation.responses": (
            {},
            start(delegation={"type": "client", "responses": {"model": "m"}}),
        ),
        "session.input[].content[].text": (start(input=[said]), start(input=[other])),
        "session.input[].role": (start(input=[said]), start(input=[said | {"role": "developer"}])),
        "audio": ({}, {"audio": s16(2000)}),
    }
