"""Parts of public events: errors, and the figures beside the output of a unit."""

from typing import Final, Literal

from ws_adapter.dialects.errors import ErrorCode
from ws_adapter.dialects.events import (
    ErrorBody,
    ErrorEvent,
    InputTokenDetails,
    Metrics,
    OutputTokenDetails,
    TokenUsage,
)
from ws_adapter.dialects.units import Unit
from ws_adapter.dialects.worker import Timings, Tokens, UnitDone

OUTPUT_RATE_HZ: Final = 24_000

BRIEF_SILENCE: Final = bytes(480 * 4)
"""20 ms: what a speaking unit without samples sends, so that every unit is answered."""


def error(code: ErrorCode, message: str, param: str | None = None, input_id: str | None = None) -> ErrorEvent:
    """An `error` event."""
    side: Literal["client_error", "server_error"] = "server_error" if code.is_servers else "client_error"
    return ErrorEvent(error=ErrorBody(code, message, side, param, input_id))


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


def input_metrics(unit: Unit, dropped_total: int) -> Metrics:
    """What the adapter itself knows about a unit; zeros are left out."""
    return Metrics(
        padded_samples=unit.padded_samples or None,
        clipped_samples=unit.clipped_samples or None,
        ignored_frames=unit.ignored_frames or None,
        injected_silence=unit.injected_silence or None,
        dropped_total=dropped_total or None,
    )


def add_worker_metrics(metrics: Metrics, done: UnitDone, prefill: Timings | None, context_limit: int) -> None:
    """Adds what the worker measured; `prefill` are the timings of the unit's input."""
    times = done.timings
    metrics.kv_cache_length = done.context_tokens
    metrics.n_past_max = context_limit or None
    metrics.queue_ms = times.queue
    metrics.prefill_ms = times.prefill if times.prefill is not None or prefill is None else prefill.prefill
    metrics.generate_ms = times.total
    metrics.cost_llm_ms = times.decode
    metrics.cost_tts_ms = times.speech
    metrics.cost_token2wav_ms = times.vocoder
    metrics.n_tokens = done.tokens.output_text
    metrics.n_tts_tokens = done.tokens.output_audio
