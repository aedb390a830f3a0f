"""The interface of an engine, and its events.

Calls may be made from any thread and return at once. Events come back on the thread that the
engine's `deliver` function passes them to (the serving event loop), in order for each session. For
one session the caller keeps the order prefill(n), generate(n), finalize(n), prefill(n + 1); it may
make all of these calls ahead of the events. Unit numbers rise but may skip: a unit whose input was
refused never reaches the engine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from inference_service.interface.setups import (
    Content,
    DuplexSettings,
    DuplexSetup,
    Mode,
    Sampling,
    SessionSetup,
    TextPurpose,
    UnitFormat,
    UnitOverrides,
    UnitRecord,
    Window,
    WindowMode,
)


@dataclass(frozen=True)
class UnitUsage:
    """Token counts of one unit, or the sum of a session's."""

    input_text_tokens: int = 0
    input_audio_tokens: int = 0
    input_vision_tokens: int = 0
    cached_tokens: int = 0
    output_text_tokens: int = 0
    output_audio_tokens: int = 0


@dataclass(frozen=True)
class UnitTimings:
    """Seconds that a unit spent in each part of the worker."""

    queue: float = 0.0
    """Waiting for a tick, from the later of the unit's arrival and the end of the session's previous unit."""
    prefill: float = 0.0
    decode: float = 0.0
    speech: float = 0.0
    vocoder: float = 0.0
    total: float = 0.0
    """From the unit's arrival to its last answer, including the wait for its orders."""

    @property
    def worked(self) -> float:
        """The worker's own part of the total, without the wait for a slow caller's orders."""
        return self.queue + self.prefill + self.decode + self.speech + self.vocoder


class End(Enum):
    """The ends of a unit."""

    LISTEN = auto()
    CHUNK = auto()
    TURN = auto()
    CONTEXT_FULL = auto()
    CANCELLED = auto()
    FAILED = auto()


class Finish(Enum):
    """The reason why decoding of a unit stopped."""

    EOS = auto()
    STOP = auto()
    LENGTH = auto()


@dataclass(frozen=True)
class Failure:
    """A failed unit: the session goes on. `reason` is an `antiphon.contract.Reason` value."""

    reason: str
    message: str
    field: str = ""
    retryable: bool = False


@dataclass(frozen=True)
class Ready:
    """The event that the prompt is in the context: the session accepts units now."""

    prompt_tokens: int


@dataclass(frozen=True)
class Prefilled:
    """The event that the input of unit `unit` is in the context, or that it failed and left nothing there."""

    unit: int
    context_tokens: int = 0
    usage: UnitUsage = field(default_factory=UnitUsage)
    timings: UnitTimings = field(default_factory=UnitTimings)
    failure: Failure | None = None
    vision_slices: int = 0
    ignored_fields: tuple[str, ...] = ()
    """Paths of given settings of a chat turn that have no effect with this model."""


@dataclass(frozen=True)
class Progress:
    """The event that unit `unit` makes progress; for the worker's watchdogs, not for the caller."""

    unit: int


@dataclass(frozen=True)
class CallDelta:
    """A part of a tool call: the first has `id` and `name`, the last is `complete`."""

    index: int
    """The number of the call in its unit, from 0."""
    id: str = ""
    name: str = ""
    arguments: str = ""
    """Text to append; all parts together are a JSON object."""
    complete: bool = False


@dataclass(frozen=True)
class Piece:
    """Output of a unit: text, the ids behind it, and float32 mono audio at the model's output rate.

    `thinking` and `call` are neither text of the answer nor spoken.
    """

    unit: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    audio: NDArray[np.float32] | None = None
    thinking: str = ""
    call: CallDelta | None = None
    sampled: tuple[int, ...] = ()
    """Ids sampled since the previous piece, in a chat with `records`."""


@dataclass(frozen=True)
class Done:
    """The last answer to a unit's Generate."""

    unit: int
    end: End
    finish: Finish | None
    context_tokens: int
    usage: UnitUsage = field(default_factory=UnitUsage)
    timings: UnitTimings = field(default_factory=UnitTimings)
    failure: Failure | None = None
    record: UnitRecord | None = None
    """The record of a duplex unit whose session asked for it."""
    replayed: bool = False
    """Whether nothing was sampled, because the unit came with its record."""


@dataclass(frozen=True)
class Finalized:
    """The event that the unit is closed; its terminator tokens join the next forward and are counted here."""

    unit: int
    context_tokens: int
    dropped_units: int
    session_usage: UnitUsage
    timings: UnitTimings = field(default_factory=UnitTimings)
    discarded_tokens: int = 0
    """Sampled tokens that did not stay in the context: 1 if the last token of a stream was dropped."""


@dataclass(frozen=True)
class Rewound:
    """The answer to a rewind to `unit`: later words are removed, unless it has a `failure`."""

    unit: int
    context_tokens: int = 0
    units: int = 0
    """Units from which something was removed."""
    failure: Failure | None = None


@dataclass(frozen=True)
class SessionFailed:
    """The event that the session cannot go on. `reason` is an `antiphon.contract.Reason` value."""

    reason: str
    message: str
    field: str = "system_prompt"
    """The field of the config that caused the failure, if any."""


@dataclass(frozen=True)
class Closed:
    """The last event, sent exactly once: the session's caches are clean and its slot is free."""


Event = Ready | Prefilled | Progress | Piece | Done | Finalized | Rewound | SessionFailed | Closed
Sink = Callable[[Sequence[Event]], None]
"""Receives the events of a session in a tick, in order."""

Deliver = Callable[[list[tuple[Callable[[Any], None], Any]]], None]
"""Delivers events to their sinks, in order, on the serving event loop.

Callable from any thread.
"""

OnFatal = Callable[[str], None]
"""Reports that the device's state is lost: every session ends with ENGINE_FATAL, and the worker
exits with 3.
"""


NAMED_TICKS = 100
"""Interval of ticks that name their members; names in every tick would cost too much engine time."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """One tick of the engine's loop in which the model ran. Times are monotonic seconds."""

    number: int
    """The number of the tick, from 1."""
    started: float
    ended: float
    sessions: int
    """Sessions that had rows or speech in the tick."""
    tokens: int
    """Rows of the language model's forward, of all sessions together."""
    members: tuple[tuple[str, int], ...] = ()
    """Session and unit of each member of the tick; empty except in one tick of `NAMED_TICKS`."""
    speaking: int = 0
    """Sessions that had a step of speech in the tick."""
    rest_s: float = 0.0
    """Seconds that went into work without a deadline."""


OnTicks = Callable[[Sequence[Ticked]], None]
"""Receives ticks, oldest first, before the events of the same ticks, on the thread that delivers events."""


@dataclass(frozen=True)
class Occupancy:
    """Memory and slots in use."""

    kv_tokens: int
    """Tokens in the contexts of all sessions."""
    kv_capacity_tokens: int
    """Tokens that fit in all slots."""
    device_memory_bytes: int | None
    """The device's memory that the process holds; None if it is not known."""
    used_pages: int = 0
    """Pages of the KV cache that contexts refer to."""
    cached_pages: int = 0
    """Idle pages of the prefix cache."""
    free_pages: int = 0
    prefix_tokens: int = 0
    """Tokens so far that were found in the prefix cache."""
    late_captures: int = 0
    """CUDA graphs that were captured while sessions were served; each capture delays all sessions."""
    late_compilations: int = 0


@dataclass(frozen=True)
class EngineInfo:
    """The engine that computes a model."""

    name: str = "antiphon"
    version: str = ""
    """Version of the engine's package; empty for this package."""
    device: str = ""
    """The engine's device; empty for the device of the worker's options."""
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    step_s: float | None = None
    """Limit of a step in seconds; a longer step counts as a hang. None is the worker's limit."""


@dataclass(frozen=True)
class ModelInfo:
    """The description and the needs of a loaded model. Rates are 0 for a model without audio."""

    name: str
    context_limit: int
    input_sample_rate_hz: int
    output_sample_rate_hz: int
    unit_seconds: float
    duplex_defaults: DuplexSettings
    window: Window
    modes: frozenset[Mode] = frozenset({Mode.AUDIO})
    """The kinds of session that the model supports."""
    sampling_defaults: Sampling = field(default_factory=Sampling)
    sees: bool = False
    """Whether the model has a vision encoder."""
    max_slices: int = 0
    """Limit of slices of a picture: 0 for a model without vision, 1 for one that cuts no pictures."""
    speaks: bool = True
    """Whether the model has a voice."""
    windows: frozenset[WindowMode] = frozenset({WindowMode.OFF, WindowMode.BASIC})
    """The windows that full-duplex sessions support."""
    hears_voices: bool = False
    """Whether the language model hears reference audio in its prompt."""
    clones_voices: bool = False
    """Whether the model can speak with the voice of reference audio."""
    voice_ids: frozenset[str] = frozenset()
    """Ids of the registered voices."""
    vocabulary: int = 0
    """The number of token ids."""
    text_purposes: frozenset[TextPurpose] = frozenset()
    """Purposes of texts that full-duplex sessions read while they listen."""
    speech_codes: int = 0
    """The number of speech codes."""
    codes_per_unit: int = 0
    """Limit of speech codes in a unit."""
    words_per_unit: int = 0
    """Limit of recognised word ids in a unit; 0 for a model that reads none."""
    replays_units: bool = False
    """Whether full-duplex sessions return records of units and replay them."""
    replays_turns: bool = False
    """Whether chats return sampled ids, and continue answers that began elsewhere."""
    calls_tools: bool = False
    """Whether chats support tools."""
    engine: EngineInfo = field(default_factory=EngineInfo)
    """The engine that computes the model."""
    reads_prompts: bool = True
    """Whether a system prompt has an effect."""
    without_effect: frozenset[str] = frozenset()
    """Names of the fields of `DuplexSettings` without an effect."""
    sampling_without_effect: frozenset[str] = frozenset()
    """Names of the fields of `Sampling` that the engine cannot apply; they keep their defaults."""
    other_formats: tuple[UnitFormat, ...] = ()
    """Formats, apart from the usual one, that full-duplex sessions may ask for."""
    supports_background: bool = True
    """Whether transcriptions may yield to all other sessions (`background`)."""
    yields: bool = False
    """Whether the model hears the user while it speaks, and falls silent by itself."""

    @property
    def unit_format(self) -> UnitFormat:
        """The usual format of duplex units."""
        return UnitFormat(self.unit_seconds, self.input_sample_rate_hz)

    def format_of(self, setup: DuplexSetup) -> UnitFormat:
        """Return the format of a session's units."""
        return setup.format or self.unit_format


class EngineSession(Protocol):
    """One session inside the engine."""

    def prefill(self, unit: int, content: Content) -> None:
        """Take the input of one unit, of the session's own mode.

        Duplex audio is at most one unit long, is padded if shorter, and follows the unit's pictures. A
        picture that cannot be read fails the unit (IMAGE_INVALID), as does input that does not fit the
        context (INPUT_TOO_LONG).
        """

    def generate(self, unit: int, force_listen: bool, overrides: UnitOverrides) -> None:
        """Run the model on a prefilled unit: sample its tokens and speak."""

    def reject(self, unit: int, failure: Failure) -> None:
        """Reject the settings of a unit in place of `generate`: the unit ends FAILED without output.

        The input of a duplex unit stays in the context; a chunk of a stream is removed from it.
        """

    def finalize(self, unit: int, *, keep_last_token: bool = False) -> None:
        """Close a generated unit. A stream drops its last sampled token, unless `keep_last_token` is set."""

    def cancel(self, unit: int) -> None:
        """Cancel units up to and including `unit`, ahead of all other orders.

        They end CANCELLED: their input still enters the context, and no further output comes. The order also
        holds for units that arrive later.
        """

    def rewind(self, unit: int, heard_samples: int | None) -> None:
        """Remove a duplex session's words after `heard_samples` of `unit`; None keeps all of that unit.

        `unit` must be finalised. The rewind takes effect after all units that have an order to generate, and
        before the first unit without one. `Rewound` is its answer.
        """

    def close(self) -> None:
        """Drop all pending work and release everything; answered by `Closed`. Idempotent."""


class Engine(Protocol):
    """The model and its batching loop."""

    @property
    def info(self) -> ModelInfo:
        """The description of the loaded model."""

    @property
    def slots(self) -> int:
        """The number of sessions that fit at once."""

    def watch(self, on_ticks: OnTicks) -> None:
        """Report every tick from now on to `on_ticks` too."""

    def occupancy(self) -> Occupancy:
        """Return the current occupancy."""

    @property
    def busy_since(self) -> float | None:
        """Start of the current step by the engine's monotonic clock; None while it is idle."""

    def open(self, session_id: str, slot: int, setup: SessionSetup, sink: Sink) -> EngineSession:
        """Start a session in a slot, from 0 to `slots` - 1; `Ready` or `SessionFailed` follows.

        The caller owns the slots: it reuses one only after the `Closed` of the previous session. If this
        raises, there is no session, and the slot is empty.
        """

    def stop(self) -> None:
        """Stop the engine's thread and wait for it; no event comes after. Idempotent."""
