"""Parts of public events: the queue, errors, and the figures beside the output of a unit."""

from typing import Final, Literal

from ws_adapter.protocol.core.signals import Tokens
from ws_adapter.protocol.duplex.answers import Answer, Outcome
from ws_adapter.protocol.duplex.vocabulary import Place
from ws_adapter.protocol.wire.errors import ErrorCode
from ws_adapter.protocol.wire.events import (
    ErrorBody,
    ErrorEvent,
    InputTokenDetails,
    Metrics,
    OutputTokenDetails,
    SessionQueued,
    SessionQueueUpdate,
    TokenUsage,
)

OUTPUT_RATE_HZ: Final = 24_000

BRIEF_SILENCE: Final = bytes(480 * 4)
"""20 ms: what a speaking unit without samples sends where every unit has to be answered by audio."""


def error(code: ErrorCode, message: str, param: str | None = None, input_id: str | None = None) -> ErrorEvent:
    """An `error` event of `/v1/realtime`."""
    side: Literal["client_error", "server_error"] = "server_error" if code.is_servers else "client_error"
    return ErrorEvent(error=ErrorBody(code, message, side, param, input_id))


def queued(place: Place, *, is_update: bool) -> SessionQueued:
    """A queue event of `/v1/realtime`."""
    shape = SessionQueueUpdate if is_update else SessionQueued
    return shape(
        position=place.position,
        estimated_wait_s=round(place.estimated_wait_s, 1),
        estimate_is_guess=place.estimate_is_guess,
        ticket_id=place.ticket_id,
        queue_length=place.queue_length,
    )


def audio_seconds(audio: bytes) -> float:
    """Length of float32 output audio."""
    return len(audio) / 4 / OUTPUT_RATE_HZ


def usage(tokens: Tokens) -> TokenUsage:
    """The public form of token counts."""
    given = tokens.input_text + tokens.input_audio + tokens.input_vision
    made = tokens.output_text + tokens.output_audio
    return TokenUsage(
        total_tokens=given + made,
        input_tokens=given,
        output_tokens=made,
        input_token_details=InputTokenDetails(
            tokens.input_text, tokens.input_audio, tokens.input_vision, tokens.cached
        ),
        output_token_details=OutputTokenDetails(tokens.output_text, tokens.output_audio),
    )


def metrics(answer: Answer) -> Metrics:
    """The figures of a unit; those of the adapter itself are left out where they are 0."""
    unit = answer.unit
    figures = Metrics(
        padded_samples=unit.padded_samples or None,
        clipped_samples=unit.clipped_samples or None,
        ignored_frames=unit.ignored_frames or None,
        injected_silence=unit.injected_silence or None,
        dropped_total=answer.dropped_total or None,
    )
    if answer.outcome is Outcome.DROPPED:
        figures.dropped = True
        return figures
    times = answer.timings
    figures.kv_cache_length = answer.context_tokens
    figures.n_past_max = answer.context_limit or None
    figures.queue_ms = times.queue
    figures.prefill_ms = times.prefill
    figures.generate_ms = times.total
    figures.cost_llm_ms = times.decode
    figures.cost_tts_ms = times.speech
    figures.cost_token2wav_ms = times.vocoder
    figures.n_tokens = answer.own.output_text
    figures.n_tts_tokens = answer.own.output_audio
    figures.vision_slices = answer.vision_slices or None
    figures.vision_tokens = answer.own.input_vision or None
    return figures
