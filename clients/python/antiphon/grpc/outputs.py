"""Typed messages that a worker sends."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from antiphon.audio.samples import Samples, from_bytes
from antiphon.errors import ProtocolError
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb


class UnitEnd(StrEnum):
    """The reason that a unit ended."""

    LISTEN = "listen"
    """The model listened; an open turn is closed."""
    CHUNK = "chunk"
    """The turn goes on in the next unit."""
    TURN = "turn"
    """The turn is complete."""
    CONTEXT_FULL = "context_full"
    """The session ends with this unit."""
    CANCELLED = "cancelled"
    FAILED = "failed"
    UNSPECIFIED = "unspecified"
    """A newer worker's reason that this version does not know."""


class Finish(StrEnum):
    """The reason that decoding stopped."""

    EOS = "eos"
    """The model's own end token."""
    STOP = "stop"
    """A match of `stop` or `stop_token_ids`."""
    LENGTH = "length"
    """`max_new_tokens` were drawn."""
    UNSPECIFIED = "unspecified"
    """Decoding did not end by itself, or a newer worker gave an unknown reason."""


@dataclass(frozen=True)
class UnitError:
    """The error of one unit; the session goes on."""

    reason: str
    """A value of `antiphon.contract.Reason`."""
    message: str
    field: str
    retryable: bool


@dataclass(frozen=True)
class Ready:
    """The session accepts units; always the first output."""

    worker_id: str
    model: str
    prompt_tokens: int
    context_limit: int
    max_units_in_flight: int
    input_rate_hz: int
    output_rate_hz: int
    unit_s: float
    """The length of one unit in seconds of audio."""
    effective: pb.SessionConfig
    """The config with the values that really apply."""
    ignored_fields: tuple[str, ...]

    @property
    def unit_samples(self) -> int:
        """The number of input samples in one unit."""
        return round(self.unit_s * self.input_rate_hz)


@dataclass(frozen=True)
class Prefilled:
    """The prefill of a unit is done, or has failed."""

    unit: int
    context_tokens: int
    error: UnitError | None
    usage: common.Usage = field(default_factory=common.Usage)


@dataclass(frozen=True)
class Text:
    """Text that a unit adds to the turn."""

    unit: int
    text: str
    token_ids: tuple[int, ...]
    """The tokens of the text; always set in TOKENS, even without text."""


@dataclass(frozen=True)
class Thinking:
    """A piece of the model's reasoning before it answers; no part of the answer."""

    unit: int
    text: str


@dataclass(frozen=True)
class CallDelta:
    """A piece of a call to a tool; append its `arguments` to the earlier ones of the same call."""

    unit: int
    index: int
    """The index of the call in the unit, from 0."""
    id: str
    """The id of the call; only the first piece has the id and the name."""
    name: str
    arguments: str
    complete: bool
    """Whether the arguments are whole. An incomplete call must not be carried out."""


@dataclass(frozen=True, eq=False)
class Audio:
    """Audio that a unit adds to the turn."""

    unit: int
    samples: Samples
    """float32, shape `(samples,)`, mono."""
    rate_hz: int


@dataclass(frozen=True)
class UnitDone:
    """The end of a unit's output; exactly one for each unit."""

    unit: int
    end: UnitEnd
    context_tokens: int
    error: UnitError | None
    usage: common.Usage
    timings: common.Timings
    finish: Finish = Finish.UNSPECIFIED
    record: pb.UnitRecord | None = None
    """The outcome of the unit, for a replay; None in a session without `records`."""


@dataclass(frozen=True)
class Finalized:
    """A unit is closed; exactly one for each unit."""

    unit: int
    context_tokens: int
    dropped_units: int
    """The number of old units that the sliding window has just dropped."""
    discarded_tokens: int = 0
    """The number of tokens that were drawn and did not stay in the context."""
    session_usage: common.Usage = field(default_factory=common.Usage)
    """The usage of all units up to this one."""


@dataclass(frozen=True)
class GoAway:
    """The worker will end the session; open another one elsewhere."""

    time_left_s: float
    reason: str


GenerateOutput: TypeAlias = Prefilled | Text | Audio | Thinking | CallDelta | UnitDone | GoAway | Finalized
"""The parts of a message of the Generate stream; Prefilled and Finalized occur only with automatic units."""

Output: TypeAlias = Ready | GenerateOutput
"""The outputs that iterating over a session yields."""

_ENDS = {
    pb.UNIT_END_LISTEN: UnitEnd.LISTEN,
    pb.UNIT_END_CHUNK: UnitEnd.CHUNK,
    pb.UNIT_END_TURN: UnitEnd.TURN,
    pb.UNIT_END_CONTEXT_FULL: UnitEnd.CONTEXT_FULL,
    pb.UNIT_END_CANCELLED: UnitEnd.CANCELLED,
    pb.UNIT_END_FAILED: UnitEnd.FAILED,
}
_FINISHES = {
    pb.FINISH_REASON_EOS: Finish.EOS,
    pb.FINISH_REASON_STOP: Finish.STOP,
    pb.FINISH_REASON_LENGTH: Finish.LENGTH,
}


def from_prefill(response: pb.PrefillResponse) -> Ready | Prefilled:
    """Convert one message of the Prefill stream."""
    if response.HasField("ready"):
        ready = response.ready
        return Ready(
            worker_id=ready.worker_id,
            model=ready.model,
            prompt_tokens=ready.prompt_tokens,
            context_limit=ready.context_limit,
            max_units_in_flight=ready.max_units_in_flight,
            input_rate_hz=ready.input_sample_rate_hz,
            output_rate_hz=ready.output_sample_rate_hz,
            unit_s=ready.unit_duration.ToTimedelta().total_seconds(),
            effective=ready.effective,
            ignored_fields=tuple(ready.ignored_fields),
        )
    if response.HasField("error"):
        return Prefilled(response.unit, 0, _error(response.error))
    return _prefilled(response.unit, response.prefilled)


def _prefilled(unit: int, prefilled: pb.Prefilled) -> Prefilled:
    return Prefilled(unit, prefilled.context_tokens, None, prefilled.usage)


def from_generate(response: pb.GenerateResponse) -> Iterator[GenerateOutput]:
    """Yield the parts of one message of the Generate stream, the end of the unit last."""
    if response.HasField("prefilled"):
        yield _prefilled(response.unit, response.prefilled)
    if response.HasField("thinking"):
        yield Thinking(response.unit, response.thinking.text)
    if response.HasField("text"):
        yield Text(response.unit, response.text.text, tuple(response.text.token_ids))
    if response.HasField("audio"):
        audio = response.audio
        if audio.encoding != common.AUDIO_ENCODING_PCM_F32LE:
            raise ProtocolError("The worker sent audio that is not float32.", reason="AUDIO_INVALID")
        yield Audio(response.unit, from_bytes(audio.data), audio.sample_rate_hz)
    if response.HasField("tool_call"):
        call = response.tool_call
        yield CallDelta(response.unit, call.index, call.id, call.name, call.arguments, call.complete)
    if response.HasField("go_away"):
        away = response.go_away
        yield GoAway(away.time_left.ToTimedelta().total_seconds(), away.reason)
    if response.HasField("done"):
        done = response.done
        yield UnitDone(
            unit=response.unit,
            end=_ENDS.get(done.end, UnitEnd.UNSPECIFIED),
            context_tokens=done.context_tokens,
            error=_error(done.error) if done.HasField("error") else None,
            usage=done.usage,
            timings=done.timings,
            finish=_FINISHES.get(done.finish_reason, Finish.UNSPECIFIED),
            record=done.record if done.HasField("record") else None,
        )
    if response.HasField("finalized"):
        yield from_finalize(response.finalized)


def from_finalize(response: pb.FinalizeResponse) -> Finalized:
    """Convert one message of the Finalize stream."""
    return Finalized(
        response.unit,
        response.context_tokens,
        response.dropped_units,
        response.discarded_tokens,
        response.session_usage,
    )


def _error(error: common.ItemError) -> UnitError:
    return UnitError(error.reason, error.message, error.field, error.retryable)
