"""Conversion between messages of `antiphon.v1` and the plain data of the protocols."""

from functools import lru_cache
from typing import Final

import numpy as np
from google.protobuf.duration_pb2 import Duration

from antiphon.contract import Reason
from antiphon.v1 import common_pb2
from antiphon.v1 import inference_service_pb2 as pb
from ws_adapter.protocol.core.actions import Run, RunSegment, RunTurn, RunUnit
from ws_adapter.protocol.core.config import (
    USUAL_UNIT_MS,
    ChatSetup,
    DuplexConfig,
    Mode,
    SessionSetup,
    TranscriptionSetup,
    WorkerSetup,
)
from ws_adapter.protocol.core.signals import (
    CallDelta,
    Finalized,
    Finish,
    Piece,
    Prefilled,
    Ready,
    Rewound,
    TextPurpose,
    Timings,
    UnitDone,
    UnitEnd,
)
from ws_adapter.protocol.core.turn import Message, Named, Picture, Speech, Turn, Video
from ws_adapter.protocol.media.reference_voice import RATE_HZ, Voice
from ws_adapter.protocol.wire.events import InputTokenDetails, OutputTokenDetails, TokenUsage

_LONGEST_PROBLEM: Final = 200
"""The most characters of a worker's error text that a client gets."""

_ENDS: Final = {
    pb.UNIT_END_LISTEN: UnitEnd.LISTEN,
    pb.UNIT_END_CHUNK: UnitEnd.CHUNK,
    pb.UNIT_END_TURN: UnitEnd.TURN,
    pb.UNIT_END_CONTEXT_FULL: UnitEnd.CONTEXT_FULL,
    pb.UNIT_END_CANCELLED: UnitEnd.CANCELLED,
    pb.UNIT_END_FAILED: UnitEnd.FAILED,
}

_FINISHES: Final = {
    pb.FINISH_REASON_EOS: Finish.EOS,
    pb.FINISH_REASON_STOP: Finish.STOP,
    pb.FINISH_REASON_LENGTH: Finish.LENGTH,
}

MODES: Final = {
    Mode.AUDIO: pb.SESSION_MODE_AUDIO,
    Mode.VIDEO: pb.SESSION_MODE_VIDEO,
    Mode.CHAT: pb.SESSION_MODE_CHAT,
    Mode.TRANSCRIPTION: pb.SESSION_MODE_TRANSCRIBE,
}

PURPOSES: Final = {
    TextPurpose.INSTRUCTIONS: pb.TEXT_PURPOSE_INSTRUCTIONS,
    TextPurpose.THINKING: pb.TEXT_PURPOSE_THINKING,
    TextPurpose.COMMENTARY: pb.TEXT_PURPOSE_COMMENTARY,
    TextPurpose.TOOL_RESULT: pb.TEXT_PURPOSE_TOOL_RESULT,
}

CACHED_MESSAGES: Final = 2**12
"""The most cached short messages of each kind; sessions last 600 units by default."""

_ROLES: Final = {
    "system": pb.ROLE_SYSTEM,
    "user": pb.ROLE_USER,
    "assistant": pb.ROLE_ASSISTANT,
    "tool": pb.ROLE_TOOL,
}

_TOOL_MODES: Final = {
    "auto": pb.TOOL_MODE_AUTO,
    "none": pb.TOOL_MODE_NONE,
    "required": pb.TOOL_MODE_REQUIRED,
}

_ENUM_VALUES: Final = {
    "explicit": common_pb2.LISTEN_SPEAK_MODE_EXPLICIT,
    "sampling": common_pb2.DECODE_MODE_SAMPLING,
    "greedy": common_pb2.DECODE_MODE_GREEDY,
}
"""Strings of the public protocols, with their enum values in `antiphon.v1`."""


def session_config(setup: WorkerSetup, max_duration_s: float) -> pb.SessionConfig:
    """Return the config of a session; with a `max_duration_s` of 0 the worker limits the duration."""
    config = pb.SessionConfig(model=setup.model, automatic_units=True)
    match setup:
        case SessionSetup():
            config.mode = MODES[setup.mode]
            config.system_prompt = setup.system_prompt
            config.duplex.CopyFrom(duplex_config(setup.duplex))
            if setup.unit_ms != USUAL_UNIT_MS:
                config.duplex.chunk_ms, config.duplex.sample_rate = setup.unit_ms, RATE_HZ
        case ChatSetup():
            config.mode = MODES[Mode.CHAT]
            config.system_prompt = setup.system_prompt
        case TranscriptionSetup():
            config.mode = MODES[Mode.TRANSCRIPTION]
            config.background = setup.is_background
    if not isinstance(setup, TranscriptionSetup):
        _set_voice(config.voice, setup.voice)
        if setup.seed is not None:
            config.seed = setup.seed
    if max_duration_s:
        config.max_duration.FromMilliseconds(round(max_duration_s * 1000))
    return config


def _set_voice(given: common_pb2.Voice, voice: Voice) -> None:
    if voice.llm_reference is not None:
        given.llm_reference.CopyFrom(audio_chunk(voice.llm_reference))
    if voice.speech_reference is not None:
        given.speech_reference.CopyFrom(audio_chunk(voice.speech_reference))
    if voice.voice_id is not None:
        given.voice_id = voice.voice_id


def duplex_config(settings: DuplexConfig) -> common_pb2.DuplexConfig:
    """Return the message with the same field names; None leaves a field unset."""
    config = common_pb2.DuplexConfig()
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if value is not None:
            setattr(config, name, _ENUM_VALUES[value] if isinstance(value, str) else value)
    return config


def audio_chunk(data: bytes) -> common_pb2.AudioChunk:
    """Return float32 samples at `RATE_HZ` as a message."""
    chunk = common_pb2.AudioChunk()
    _set_audio(chunk, data)
    return chunk


def prefill(run: Run, traceparent: str) -> pb.PrefillRequest:
    """Return the input of one unit."""
    request = pb.PrefillRequest(unit=run.unit, traceparent=traceparent)
    # Filled in place: a constructor copies the messages among its arguments.
    match run:
        case RunUnit():
            _set_audio(request.duplex.audio, run.audio)
            for frame in run.frames:
                request.duplex.frames.add(data=frame)
            if run.max_slice_nums is not None:
                request.duplex.max_slice_nums = run.max_slice_nums
            for text in run.texts:
                request.duplex.texts.add(purpose=PURPOSES[text.purpose], text=text.text)
        case RunTurn():
            _set_turn(request.turn, run.turn)
        case RunSegment():
            request.stream.SetInParent()
            request.stream.begin_utterance, request.stream.end_utterance = run.begins, run.ends
            if run.audio:
                _set_audio(request.stream.audio, run.audio)
    return request


def prefill_parts(run: Run, traceparent: str) -> tuple[bytes, ...]:
    """Return the serialised input of one unit. The audio of a unit without other input is not copied."""
    if not isinstance(run, RunUnit) or run.frames or run.texts or run.max_slice_nums is not None:
        return (prefill(run, traceparent).SerializeToString(),)
    trace = traceparent.encode()
    # Concatenated messages are parsed as one message.
    head = (unit_number(run.unit), _before_trace(len(trace)), trace, _before_sound(len(run.audio)))
    return b"".join(head), run.audio


@lru_cache(CACHED_MESSAGES)
def _before_sound(size: int) -> bytes:
    """Return the encoding of a message with `size` bytes of audio alone, up to the audio."""
    request = pb.PrefillRequest()
    _set_audio(request.duplex.audio, bytes(size))
    whole = request.SerializeToString()
    return whole[: len(whole) - size]


@lru_cache(CACHED_MESSAGES)
def _before_trace(size: int) -> bytes:
    """Return the encoding of a message with a trace context of `size` bytes alone, up to the context."""
    whole = pb.PrefillRequest(traceparent="0" * size).SerializeToString()
    return whole[: len(whole) - size]


def automatic_parts(run: Run, traceparent: str, prefill: bytes | None = None) -> tuple[bytes, ...]:
    """Return a serialised automatic unit: its input, and how to run it.

    `prefill` is its serialised input, None if that was not made before.
    """
    parts = prefill_parts(run, traceparent) if prefill is None else (prefill,)
    how = automatic_bytes(run)
    return (*parts, how) if how else parts


@lru_cache(CACHED_MESSAGES)
def unit_number(unit: int) -> bytes:
    """Return a serialised number that overrides the one in a unit's input."""
    return pb.PrefillRequest(unit=unit).SerializeToString()


def generate_bytes(run: Run) -> bytes:
    """Return the instructions for the generation of a unit: a serialised `pb.GenerateRequest`."""
    if isinstance(run, RunUnit):
        return _generate_unit(run.unit, run.force_listen)
    return pb.GenerateRequest(unit=run.unit, run=_generate(run)).SerializeToString()


def automatic_bytes(run: Run) -> bytes:
    """Return how to run an automatic unit: a serialised `pb.PrefillRequest` to append to its input."""
    if isinstance(run, RunUnit):
        return _FORCED if run.force_listen else b""
    return pb.PrefillRequest(run=_generate(run)).SerializeToString()


def _generate(run: Run) -> pb.GenerateUnit:
    unit = pb.GenerateUnit()
    if isinstance(run, RunTurn):
        drawn, sampling = run.turn.generation, unit.sampling
        sampling.max_new_tokens = drawn.max_new_tokens
        if drawn.temperature is not None:
            sampling.temperature = drawn.temperature
        if drawn.top_p is not None:
            sampling.top_p = drawn.top_p
        sampling.length_penalty = drawn.length_penalty
        sampling.stop.extend(drawn.stop)
    return unit


_FORCED: Final = pb.PrefillRequest(run=pb.GenerateUnit(force_listen=True)).SerializeToString()


# The units of every session count from 1, so most of these short messages are cached.


@lru_cache(CACHED_MESSAGES)
def _generate_unit(unit: int, force_listen: bool) -> bytes:
    run = pb.GenerateUnit(force_listen=force_listen)
    return pb.GenerateRequest(unit=unit, run=run).SerializeToString()


@lru_cache(CACHED_MESSAGES)
def finalize_bytes(unit: int) -> bytes:
    """Return the request to close a unit: a serialised `pb.FinalizeRequest`."""
    return pb.FinalizeRequest(unit=unit).SerializeToString()


def _set_audio(chunk: common_pb2.AudioChunk, data: bytes) -> None:
    chunk.encoding = common_pb2.AUDIO_ENCODING_PCM_F32LE
    chunk.sample_rate_hz = RATE_HZ
    chunk.data = data


def _set_turn(given: pb.TurnInput, turn: Turn) -> None:
    for message in turn.messages:
        _set_message(given.messages.add(), message)
    if turn.tools:
        _set_tools(given, turn)
    given.tts.enabled = turn.speaks
    given.tts.mode, given.tts.language = turn.tts_mode, turn.language
    if turn.use_image_id is not None:
        given.image.use_image_id = turn.use_image_id
    if turn.max_slice_nums is not None:
        given.image.max_slice_nums = turn.max_slice_nums
    given.omni_mode, given.enable_thinking = turn.omni_mode, turn.enable_thinking
    given.use_tts_template = turn.use_tts_template


def _set_message(given: pb.ChatMessage, message: Message) -> None:
    given.role = _ROLES[message.role]
    for part in message.parts:
        match part:
            case str():
                given.content.add(text=part)
            case Picture():
                given.content.add().image.data = part.data
            case Speech():
                _set_audio(given.content.add().audio, part.data)
            case Video():
                video = given.content.add().video
                video.data, video.stack_frames = part.data, part.stack_frames
    for call in message.calls:
        given.tool_calls.add(id=call.id, name=call.name, arguments_json=call.arguments_json)
    given.tool_call_id = message.call_id


def _set_tools(given: pb.TurnInput, turn: Turn) -> None:
    for tool in turn.tools:
        given.tools.add(name=tool.name, description=tool.description, parameters_json=tool.parameters_json)
    match turn.tool_choice:
        case Named(name):
            given.tool_choice.name = name
        case mode:
            given.tool_choice.mode = _TOOL_MODES[mode]
    given.parallel_tool_calls = turn.parallel_tool_calls


def prefill_answer(answer: pb.PrefillResponse) -> Ready | Prefilled | None:
    """Return the signal in a PrefillResponse; None for a failed unit, whose UnitDone has the error."""
    match answer.WhichOneof("result"):
        case "ready":
            ready = answer.ready
            return Ready(
                prompt_tokens=ready.prompt_tokens,
                context_limit=ready.context_limit,
                max_units_in_flight=ready.max_units_in_flight,
                generate_audio=_speaks(ready.effective.duplex),
                ignored_fields=tuple(ready.ignored_fields),
                speaks=ready.output_sample_rate_hz > 0,
                text_purposes=frozenset(
                    purpose for purpose, number in PURPOSES.items() if number in ready.text_purposes
                ),
                max_slices=ready.max_slices if ready.HasField("max_slices") else None,
            )
        case "prefilled":
            return prefilled(answer.unit, answer.prefilled)
    return None


def prefilled(unit: int, answer: pb.Prefilled) -> Prefilled:
    """Convert the answer to a unit's input."""
    return Prefilled(
        unit,
        _timings(answer.timings),
        answer.vision_slices,
        _tokens(answer.usage),
        tuple(answer.ignored_fields),
    )


def _speaks(duplex: common_pb2.DuplexConfig) -> bool:
    return duplex.generate_audio if duplex.HasField("generate_audio") else True


def piece(answer: pb.GenerateResponse, unit: int) -> Piece | None:
    """Return the output of `unit` in a GenerateResponse; None if there is none."""
    has = answer.HasField
    if has("tool_call") or has("thinking"):
        call = _call(answer.tool_call) if has("tool_call") else None
        return Piece(unit, answer.text.text, speech(answer.audio), answer.thinking.text, call)
    has_text, has_audio = has("text"), has("audio")
    if not has_text and not has_audio:
        return None
    text = answer.text.text if has_text else ""
    return Piece(unit, text, speech(answer.audio) if has_audio else b"")


def _call(delta: pb.ToolCallDelta) -> CallDelta:
    return CallDelta(delta.index, delta.id, delta.name, delta.arguments, delta.complete)


def speech(chunk: common_pb2.AudioChunk) -> bytes:
    """Return output audio as float32 samples in [-1, 1], converted from int16 if necessary."""
    if chunk.encoding == common_pb2.AUDIO_ENCODING_PCM_S16LE:
        return (np.frombuffer(chunk.data, "<i2").astype("<f4") / np.float32(32768)).tobytes()
    return chunk.data


def unit_done(unit: int, done: pb.UnitDone) -> UnitDone:
    """Return the end of a unit; an unknown one counts as listening."""
    end, failure, field, problem = _ENDS.get(done.end, UnitEnd.LISTEN), None, "", ""
    if done.HasField("error"):
        field, problem = done.error.field, _problem(done.error)
    if end is UnitEnd.FAILED:
        failure = _item_reason(done.error.reason)
    return UnitDone(
        unit=unit,
        end=end,
        context_tokens=done.context_tokens,
        tokens=_tokens(done.usage),
        timings=_timings(done.timings),
        failure=failure,
        field=field,
        problem=problem,
        finish=_FINISHES.get(done.finish_reason),
    )


def _problem(error: common_pb2.ItemError) -> str:
    """Return the text after the field's name in the message of a video error; empty for other errors."""
    name = f"{error.field} "
    if error.reason != Reason.VIDEO_INVALID or not error.message.startswith(name):
        return ""
    problem = error.message.removeprefix(name).removesuffix(".")[:_LONGEST_PROBLEM]
    return problem if problem.isprintable() else ""


def finalized(answer: pb.FinalizeResponse) -> Finalized:
    """Return the signal of a closed unit."""
    return Finalized(answer.unit)


def rewound(unit: int, answer: pb.UnitsRewound) -> Rewound:
    """Return the signal of a rewound context, or why it was not rewound."""
    failure = _item_reason(answer.error.reason) if answer.HasField("error") else None
    return Rewound(unit, answer.context_tokens, answer.rewound_units, failure)


def seconds(duration: Duration) -> float:
    """Return a duration in seconds."""
    return duration.seconds + duration.nanos / 1e9


def _item_reason(text: str) -> Reason:
    try:
        return Reason(text)
    except ValueError:
        return Reason.INFERENCE_FAILED


def _tokens(usage: common_pb2.Usage) -> TokenUsage:
    text, audio, vision = usage.input_text_tokens, usage.input_audio_tokens, usage.input_vision_tokens
    said, spoken = usage.output_text_tokens, usage.output_audio_tokens
    given, made = text + audio + vision, said + spoken
    return TokenUsage(
        given + made,
        given,
        made,
        InputTokenDetails(text, audio, vision, usage.cached_tokens),
        OutputTokenDetails(said, spoken),
    )


def _timings(timings: common_pb2.Timings) -> Timings:
    # By field name: `ListFields` takes four times as long, for every unit.
    has = timings.HasField
    return Timings(
        queue=_milliseconds(timings.queue) if has("queue") else None,
        prefill=_milliseconds(timings.prefill) if has("prefill") else None,
        decode=_milliseconds(timings.decode) if has("decode") else None,
        speech=_milliseconds(timings.speech) if has("speech") else None,
        vocoder=_milliseconds(timings.vocoder) if has("vocoder") else None,
        total=_milliseconds(timings.total) if has("total") else None,
    )


def _milliseconds(duration: Duration) -> float:
    """Return a duration in ms, rounded to microseconds. Integers take a fifth of the time of `round`."""
    return (duration.seconds * 1_000_000 + (duration.nanos + 500) // 1000) / 1000
