"""Conversion of the engine's types to `antiphon.v1` messages for the caller."""

from collections.abc import Iterable, Iterator
from importlib.metadata import version

import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from antiphon.contract import MAX_MESSAGE_BYTES
from antiphon.v1 import common_pb2
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.config.duplex import duplex_config
from inference_service.config.resolve import SessionPlan, modes
from inference_service.config.sampled import sampling_defaults
from inference_service.config.sampling import SAMPLING_TO_DUPLEX, sampling_params
from inference_service.interface.engine import (
    Done,
    End,
    Failure,
    Finalized,
    Finish,
    ModelInfo,
    Piece,
    Prefilled,
    Ready,
    Rewound,
    UnitTimings,
    UnitUsage,
)
from inference_service.interface.setups import DuplexSetup, Mode, UnitRecord
from inference_service.rpc.messages.requests import PURPOSES
from inference_service.session.machine import Answer, GoAway

LARGEST_ANSWER = MAX_MESSAGE_BYTES // 4
"""Bytes of one message of text and sound; a caller accepts at most `MAX_MESSAGE_BYTES`."""
ENDS = {
    End.LISTEN: pb.UNIT_END_LISTEN,
    End.CHUNK: pb.UNIT_END_CHUNK,
    End.TURN: pb.UNIT_END_TURN,
    End.CONTEXT_FULL: pb.UNIT_END_CONTEXT_FULL,
    End.CANCELLED: pb.UNIT_END_CANCELLED,
    End.FAILED: pb.UNIT_END_FAILED,
}
_FINISHES = {
    None: pb.FINISH_REASON_UNSPECIFIED,
    Finish.EOS: pb.FINISH_REASON_EOS,
    Finish.STOP: pb.FINISH_REASON_STOP,
    Finish.LENGTH: pb.FINISH_REASON_LENGTH,
}


def session_ready(
    ready: Ready, plan: SessionPlan, info: ModelInfo, worker_id: str, window: int
) -> pb.PrefillResponse:
    """Return the answer to unit 0: the effective settings of the session."""
    setup = plan.setup
    units = info.format_of(setup) if isinstance(setup, DuplexSetup) else info.unit_format
    result = pb.SessionReady(
        worker_id=worker_id,
        model=info.name,
        prompt_tokens=ready.prompt_tokens,
        context_limit=info.context_limit,
        max_units_in_flight=window,
        input_sample_rate_hz=units.sample_rate_hz,
        output_sample_rate_hz=info.output_sample_rate_hz,
        unit_duration=duration(units.seconds),
        effective=plan.effective,
        ignored_fields=plan.ignored_fields,
        text_purposes=_purposes(info) if plan.setup.is_duplex else (),
        max_slices=info.max_slices,
    )
    return pb.PrefillResponse(unit=0, ready=result)


def _purposes(info: ModelInfo) -> list[pb.TextPurpose]:
    return [number for number, purpose in PURPOSES.items() if purpose in info.text_purposes]


def messages(answer: Answer, info: ModelInfo) -> Iterable[Message]:
    """Return one message, or several of a large answer."""
    match answer:
        case Prefilled():
            return (prefilled(answer),)
        case Piece():
            return pieces(answer, info.output_sample_rate_hz)
        case Done():
            return (done(answer),)
        case Finalized():
            return (finalized(answer),)
        case Rewound():
            return (rewound(answer),)
        case GoAway():
            return (go_away(answer.time_left_s, answer.reason),)


def prefilled(answer: Prefilled) -> pb.PrefillResponse:
    """Return the answer to a unit's Prefill."""
    if answer.failure:
        return pb.PrefillResponse(unit=answer.unit, error=item_error(answer.failure))
    response = pb.PrefillResponse(unit=answer.unit)
    _fill_prefilled(response.prefilled, answer)
    return response


def automatic_prefilled(answer: Prefilled) -> pb.GenerateResponse:
    """Return the Prefill answer to an automatic unit, as a Generate message."""
    response = pb.GenerateResponse(unit=answer.unit)
    _fill_prefilled(response.prefilled, answer)
    return response


def automatic_finalized(answer: Finalized) -> pb.GenerateResponse:
    """Return the Finalize answer to an automatic unit, as a Generate message."""
    response = pb.GenerateResponse(unit=answer.unit)
    _fill_finalized(response.finalized, answer)
    return response


def _fill_prefilled(result: pb.Prefilled, answer: Prefilled) -> None:
    result.context_tokens, result.vision_slices = answer.context_tokens, answer.vision_slices
    result.ignored_fields.extend(answer.ignored_fields)
    _count(result.usage, answer.usage)
    _time(result.timings, answer.timings)


def pieces(answer: Piece, output_sample_rate_hz: int) -> Iterator[pb.GenerateResponse]:
    """Yield a part of a unit's output in as many messages as it takes."""
    text, audio = answer.text, answer.audio
    samples = 0 if audio is None else len(audio)
    if max(4 * samples, 4 * len(text)) <= LARGEST_ANSWER:
        yield piece(answer, output_sample_rate_hz)
        return
    most = LARGEST_ANSWER // 4
    for at in range(0, len(text), most):
        is_last = at + most >= len(text)
        ids, sampled = (answer.token_ids, answer.sampled) if is_last else ((), ())
        yield piece(Piece(answer.unit, text[at : at + most], ids, sampled=sampled), output_sample_rate_hz)
    if audio is not None:
        for at in range(0, samples, most):
            yield piece(Piece(answer.unit, audio=audio[at : at + most]), output_sample_rate_hz)


def piece(answer: Piece, output_sample_rate_hz: int) -> pb.GenerateResponse:
    """Return a part of a unit's output; audio is sent as finite 32-bit floats within [-1, 1]."""
    response = pb.GenerateResponse(unit=answer.unit)
    if answer.text or answer.token_ids:
        response.text.text = answer.text
        response.text.token_ids.extend(answer.token_ids)
    if answer.audio is not None and answer.audio.size:
        response.audio.encoding = common_pb2.AUDIO_ENCODING_PCM_F32LE
        response.audio.sample_rate_hz = output_sample_rate_hz
        bounded = np.clip(np.nan_to_num(answer.audio, nan=0.0), -1.0, 1.0)
        response.audio.data = bounded.astype("<f4", copy=False).tobytes()
    if answer.thinking:
        response.thinking.text = answer.thinking
    if answer.call is not None:
        call = answer.call
        response.tool_call.index, response.tool_call.id, response.tool_call.name = (
            call.index,
            call.id,
            call.name,
        )
        response.tool_call.arguments, response.tool_call.complete = call.arguments, call.complete
    if answer.sampled:
        response.sampled_ids.extend(answer.sampled)
    return response


def done(answer: Done) -> pb.GenerateResponse:
    """Return the last answer to a unit's Generate."""
    response = pb.GenerateResponse(unit=answer.unit)
    result = response.done
    result.end, result.finish_reason = ENDS[answer.end], _FINISHES[answer.finish]
    result.context_tokens = answer.context_tokens
    _count(result.usage, answer.usage)
    _time(result.timings, answer.timings)
    if answer.failure is not None:
        result.error.CopyFrom(item_error(answer.failure))
    if answer.record is not None:
        result.record.CopyFrom(_record(answer.record))
    return response


def _record(record: UnitRecord) -> pb.UnitRecord:
    return pb.UnitRecord(
        end=ENDS[record.end],
        sampled_ids=record.sampled,
        speech_codes=record.codes,
        text_draws=record.text_draws,
        speech_draws=record.speech_draws,
        word_ids=record.words,
    )


def finalized(answer: Finalized) -> pb.FinalizeResponse:
    """Return the answer to a unit's Finalize."""
    response = pb.FinalizeResponse()
    _fill_finalized(response, answer)
    return response


def _fill_finalized(response: pb.FinalizeResponse, answer: Finalized) -> None:
    response.unit, response.context_tokens = answer.unit, answer.context_tokens
    response.dropped_units, response.discarded_tokens = answer.dropped_units, answer.discarded_tokens
    _count(response.session_usage, answer.session_usage)
    _time(response.timings, answer.timings)


def rewound(answer: Rewound) -> pb.GenerateResponse:
    """Return the answer to a rewind."""
    result = pb.UnitsRewound(
        context_tokens=answer.context_tokens,
        rewound_units=answer.units,
        error=item_error(answer.failure) if answer.failure else None,
    )
    return pb.GenerateResponse(unit=answer.unit, rewound=result)


def go_away(time_left_s: float, reason: str) -> pb.GenerateResponse:
    """Return the announcement that the session will be ended."""
    return pb.GenerateResponse(go_away=pb.GoAway(time_left=duration(time_left_s), reason=reason))


def model_info(info: ModelInfo) -> pb.GetInfoResponse:
    """Return GetInfo's description of the model."""
    return pb.GetInfoResponse(
        model=info.name,
        modes=modes(info),
        context_limit=info.context_limit,
        input_sample_rate_hz=info.input_sample_rate_hz,
        output_sample_rate_hz=info.output_sample_rate_hz,
        duplex_defaults=duplex_config(info.duplex_defaults, info.unit_format)
        if Mode.AUDIO in info.modes
        else None,
        sampling_defaults=_sampling_defaults(info),
        voice_ids=sorted(info.voice_ids),
        calls_tools=info.calls_tools,
        replays_units=info.replays_units,
        unit_formats=_unit_formats(info),
        yields=info.yields,
        ignored_fields=_ignored(info),
        replays_turns=info.replays_turns,
        engine=pb.EngineInfo(
            name=info.engine.name,
            version=info.engine.version or version("antiphon"),
            tensor_parallel_size=info.engine.tensor_parallel_size,
            pipeline_parallel_size=info.engine.pipeline_parallel_size,
        ),
    )


def _unit_formats(info: ModelInfo) -> list[pb.UnitFormat]:
    formats = (info.unit_format, *info.other_formats) if Mode.AUDIO in info.modes else ()
    return [pb.UnitFormat(chunk_ms=round(it.seconds * 1000), sample_rate=it.sample_rate_hz) for it in formats]


def _ignored(info: ModelInfo) -> list[str]:
    prompt = [] if info.reads_prompts else ["system_prompt"]
    return prompt + sorted(f"duplex.{name}" for name in info.without_effect)


def _sampling_defaults(info: ModelInfo) -> common_pb2.SamplingParams:
    """Return the defaults of chats and token streams; of duplex sessions for a model with no others."""
    for mode in (Mode.CHAT, Mode.TOKENS, Mode.TRANSCRIBE):
        if mode in info.modes:
            return sampling_params(sampling_defaults(info, mode))
    settings = info.duplex_defaults
    values = {name: getattr(settings, duplex) for name, duplex in SAMPLING_TO_DUPLEX.items()}
    return common_pb2.SamplingParams(**values)


def absorb(waiting: pb.GenerateResponse, more: pb.GenerateResponse) -> bool:
    """Add `more` to a waiting message of the same unit; return False if they cannot be one."""
    if waiting.unit != more.unit or waiting.unit == 0:
        return False
    if more.HasField("finalized") and not waiting.HasField("rewound"):
        waiting.finalized.CopyFrom(more.finalized)
        return True
    if waiting.HasField("done"):
        return False
    if waiting.HasField("rewound") or more.HasField("rewound"):
        return False
    if more.HasField("done"):  # small and alone, so no `ByteSize`, which serialises the message
        waiting.done.CopyFrom(more.done)
        return True
    if waiting.ByteSize() + more.ByteSize() > LARGEST_ANSWER or not _follows(waiting, more):
        return False
    if more.HasField("thinking"):
        waiting.thinking.text += more.thinking.text
    if more.HasField("tool_call"):
        delta = waiting.tool_call.arguments + more.tool_call.arguments
        waiting.tool_call.MergeFrom(more.tool_call)
        waiting.tool_call.arguments = delta
    if more.HasField("text"):
        waiting.text.text += more.text.text
        waiting.text.token_ids.extend(more.text.token_ids)
    if more.HasField("audio"):
        head = waiting.audio.data
        waiting.audio.CopyFrom(more.audio)
        waiting.audio.data = head + more.audio.data
    if more.sampled_ids:
        waiting.sampled_ids.extend(more.sampled_ids)
    return True


def _follows(waiting: pb.GenerateResponse, more: pb.GenerateResponse) -> bool:
    """Return whether both fit in one message, in the order of thoughts, answer, and one call."""
    calls = waiting.HasField("tool_call")
    if more.HasField("thinking") and (calls or waiting.HasField("text") or waiting.HasField("audio")):
        return False
    if calls and (more.HasField("text") or more.HasField("audio")):
        return False
    is_next = more.HasField("tool_call") and more.tool_call.index != waiting.tool_call.index
    return not (calls and is_next)


def item_error(failure: Failure) -> common_pb2.ItemError:
    """Return the error of a failed unit."""
    return common_pb2.ItemError(
        reason=failure.reason, message=failure.message, field=failure.field, retryable=failure.retryable
    )


# These functions fill a part of an answer in place: a separate message would be copied into the answer.


def _count(usage: common_pb2.Usage, tokens: UnitUsage) -> None:
    """Write token counts, even where all are 0."""
    usage.input_text_tokens = tokens.input_text_tokens
    usage.input_audio_tokens = tokens.input_audio_tokens
    usage.input_vision_tokens = tokens.input_vision_tokens
    usage.cached_tokens = tokens.cached_tokens
    usage.output_text_tokens = tokens.output_text_tokens
    usage.output_audio_tokens = tokens.output_audio_tokens


def _time(timings: common_pb2.Timings, seconds: UnitTimings) -> None:
    """Write timings; a phase that did not run stays unset."""
    timings.SetInParent()
    for spent, name in (
        (seconds.queue, "queue"),
        (seconds.prefill, "prefill"),
        (seconds.decode, "decode"),
        (seconds.speech, "speech"),
        (seconds.vocoder, "vocoder"),
        (seconds.total, "total"),
    ):
        if spent > 0:
            whole, nanos = divmod(int(spent * 1e9), 10**9)
            phase = getattr(timings, name)
            phase.seconds, phase.nanos = whole, nanos


def duration(seconds: float) -> Duration:
    """Return `seconds`, 0 or more, as a protobuf Duration."""
    whole, nanos = divmod(int(max(0.0, seconds) * 1e9), 10**9)
    return Duration(seconds=whole, nanos=nanos)
