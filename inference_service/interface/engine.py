"""The interface of an engine, and its events.

Calls may be made from any thread and return at once. Events come back on the thread of the
`deliver` function that the engine was started with (the serving event loop), in order for each
session. For one session the caller keeps the order prefill(n), generate(n), finalize(n),
prefill(n + 1); it may write all of them ahead. Unit numbers rise but may skip: a unit whose input was
refused never gets here.
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
    """Tokens of one unit or, summed, of a session."""

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
    """Waiting for a tick, once the session's unit before was closed."""
    prefill: float = 0.0
    decode: float = 0.0
    speech: float = 0.0
    vocoder: float = 0.0
    total: float = 0.0
    """From its arrival to its last word, waiting for its own orders included."""

    @property
    def worked(self) -> float:
        """What of that is the worker's: a caller that keeps its orders back makes no worker slow."""
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
    """Why decoding of a unit stopped."""

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
    """The prompt is in the context; the session takes units now."""

    prompt_tokens: int


@dataclass(frozen=True)
class Prefilled:
    """Unit `unit` is in the context, or failed before (then nothing of it is)."""

    unit: int
    context_tokens: int = 0
    usage: UnitUsage = field(default_factory=UnitUsage)
    timings: UnitTimings = field(default_factory=UnitTimings)
    failure: Failure | None = None
    vision_slices: int = 0
    ignored_fields: tuple[str, ...] = ()
    """Paths of settings of a chat turn that were given and have no effect with this model."""


@dataclass(frozen=True)
class Progress:
    """Unit `unit` is getting on: a sign of life in between for whoever watches, not for its caller."""

    unit: int


@dataclass(frozen=True)
class CallDelta:
    """More of a call to a tool: the first piece of each has `id` and `name`, the last is `complete`."""

    index: int
    """Which call of the unit, from 0."""
    id: str = ""
    name: str = ""
    arguments: str = ""
    """To be appended: together a JSON object."""
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
    """In a chat with `records`: the ids sampled since the piece before."""


@dataclass(frozen=True)
class Done:
    """The last word about a unit's generation."""

    unit: int
    end: End
    finish: Finish | None
    context_tokens: int
    usage: UnitUsage = field(default_factory=UnitUsage)
    timings: UnitTimings = field(default_factory=UnitTimings)
    failure: Failure | None = None
    record: UnitRecord | None = None
    """Of a duplex unit whose session asked for it."""
    replayed: bool = False
    """Whether nothing was sampled, because it came with its record."""


@dataclass(frozen=True)
class Finalized:
    """The unit is closed; terminator tokens are carried into the next forward and counted here."""

    unit: int
    context_tokens: int
    dropped_units: int
    session_usage: UnitUsage
    timings: UnitTimings = field(default_factory=UnitTimings)
    discarded_tokens: int = 0
    """Sampled tokens that did not stay in the context: 1 where a stream's last one was let go."""


@dataclass(frozen=True)
class Rewound:
    """The answer to a rewind to `unit`: what was said after it is no longer there, unless it `failure`s."""

    unit: int
    context_tokens: int = 0
    units: int = 0
    """Of which something was taken back."""
    failure: Failure | None = None


@dataclass(frozen=True)
class SessionFailed:
    """The session cannot go on. `reason` is an `antiphon.contract.Reason` value."""

    reason: str
    message: str
    field: str = "system_prompt"
    """Of the config, if that is the reason."""


@dataclass(frozen=True)
class Closed:
    """Every cache of the session is clean and its slot is free again; the last event, exactly once."""


Event = Ready | Prefilled | Progress | Piece | Done | Finalized | Rewound | SessionFailed | Closed
Sink = Callable[[Sequence[Event]], None]
"""Is told what happened to a session in a tick, in order."""

Deliver = Callable[[list[tuple[Callable[[Any], None], Any]]], None]
"""Hands what is told to whom it is told, events to their sinks, in order, on the serving event loop.

Callable from any thread.
"""

OnFatal = Callable[[str], None]
"""Reports that the device's state is gone: every session ends with ENGINE_FATAL, the worker exits with 3."""


NAMED_TICKS = 100
"""One tick in so many names who was in it; naming them in each would cost the engine's thread."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """One turn of the engine's loop in which the model ran. Times are monotonic seconds."""

    number: int
    """Counted from 1."""
    started: float
    ended: float
    sessions: int
    """Sessions that had rows or speech in it."""
    tokens: int
    """Rows of the language model's forward, all sessions together."""
    members: tuple[tuple[str, int], ...] = ()
    """Session and unit of each that was in it; empty in all ticks but one in `NAMED_TICKS`."""
    speaking: int = 0
    """Sessions that had a step of speech in it."""
    rest_s: float = 0.0
    """Seconds of it that went into work without a deadline."""


OnTicks = Callable[[Sequence[Ticked]], None]
"""Gets ticks, oldest first, each before the events that came of it, where events are delivered."""


@dataclass(frozen=True)
class Occupancy:
    """Memory and slots that the sessions hold at the moment."""

    kv_tokens: int
    """Tokens in the contexts of all sessions."""
    kv_capacity_tokens: int
    """Tokens that the slots have room for."""
    device_memory_bytes: int | None
    """What the process holds of the device's memory; None where that is not known."""
    used_pages: int = 0
    """Pages of keys and values that contexts refer to."""
    cached_pages: int = 0
    """Pages that no context refers to, which hold what contexts have begun with."""
    free_pages: int = 0
    prefix_tokens: int = 0
    """Tokens so far that were not computed, because another context had begun with them."""
    late_captures: int = 0
    """Regions so far that were captured while sessions were served, and all of them waited."""
    late_compilations: int = 0


@dataclass(frozen=True)
class EngineInfo:
    """What computes a model."""

    name: str = "antiphon"
    version: str = ""
    """Of the package that it comes from; empty for this one's."""
    device: str = ""
    """Where it computes; empty for the device of the worker's options."""
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    step_s: float | None = None
    """How long a step may take before the engine counts as one that hangs; None is the worker's limit."""


@dataclass(frozen=True)
class ModelInfo:
    """Description and needs of a loaded model. Rates are 0 for a model without audio."""

    name: str
    context_limit: int
    input_sample_rate_hz: int
    output_sample_rate_hz: int
    unit_seconds: float
    duplex_defaults: DuplexSettings
    window: Window
    modes: frozenset[Mode] = frozenset({Mode.AUDIO})
    """The kinds of session that it can hold."""
    sampling_defaults: Sampling = field(default_factory=Sampling)
    sees: bool = False
    """Whether it has a vision encoder."""
    max_slices: int = 0
    """Most slices that it cuts a picture into: 0 if it sees none, 1 if it cuts none."""
    speaks: bool = True
    """Whether it has a voice."""
    windows: frozenset[WindowMode] = frozenset({WindowMode.OFF, WindowMode.BASIC})
    """The windows that its full-duplex sessions can have."""
    hears_voices: bool = False
    """Whether its language model hears reference audio in its prompt."""
    clones_voices: bool = False
    """Whether it can speak with the voice of reference audio."""
    voice_ids: frozenset[str] = frozenset()
    """Voices that are registered with it."""
    vocabulary: int = 0
    """Token ids are below this."""
    text_purposes: frozenset[TextPurpose] = frozenset()
    """What a text may be for that its full-duplex sessions read while they listen."""
    speech_codes: int = 0
    """Speech codes are below this."""
    codes_per_unit: int = 0
    """Most speech codes of a unit."""
    words_per_unit: int = 0
    """Most ids of recognised words in a unit; 0 for a model that reads none."""
    replays_units: bool = False
    """Whether its full-duplex sessions give and take records of units."""
    replays_turns: bool = False
    """Whether its chats tell what they sampled, and go on with an answer that began elsewhere."""
    calls_tools: bool = False
    """Whether its chats take tools."""
    engine: EngineInfo = field(default_factory=EngineInfo)
    """What computes it."""
    reads_prompts: bool = True
    """Whether a system prompt has an effect."""
    without_effect: frozenset[str] = frozenset()
    """Names of the fields of `DuplexSettings` that change nothing here."""
    sampling_without_effect: frozenset[str] = frozenset()
    """Names of the fields of `Sampling` that its engine cannot apply; they keep their default."""
    other_formats: tuple[UnitFormat, ...] = ()
    """Formats beside its usual one that its full-duplex sessions may ask for."""
    waits_for_others: bool = True
    """Whether its transcriptions can be asked to wait for all other sessions (`background`)."""
    yields: bool = False
    """Whether it hears the user while it speaks and falls silent by itself."""

    @property
    def unit_format(self) -> UnitFormat:
        """The usual format of its duplex units."""
        return UnitFormat(self.unit_seconds, self.input_sample_rate_hz)

    def format_of(self, setup: DuplexSetup) -> UnitFormat:
        """Return the format of the units of a session."""
        return setup.format or self.unit_format


class EngineSession(Protocol):
    """One session inside the engine."""

    def prefill(self, unit: int, content: Content) -> None:
        """Take the input of one unit, of the session's own mode.

        At most one unit of duplex audio, which is padded if it is shorter, after its pictures. A picture that
        cannot be read fails the unit (IMAGE_INVALID), as does what does not fit the context (INPUT_TOO_LONG).
        """

    def generate(self, unit: int, force_listen: bool, overrides: UnitOverrides) -> None:
        """Decide and speak for a prefilled unit."""

    def reject(self, unit: int, failure: Failure) -> None:
        """Instead of `generate`, whose settings cannot be used: the unit ends FAILED without a word.

        A duplex unit stays heard; a chunk of a stream is taken out of the context again.
        """

    def finalize(self, unit: int, *, keep_last_token: bool = False) -> None:
        """Close a generated unit. A stream lets its last sampled token go, unless it is to be kept."""

    def cancel(self, unit: int) -> None:
        """Overtake everything: units up to and including `unit` end CANCELLED, heard but not spoken.

        It holds for units that come later too.
        """

    def rewind(self, unit: int, heard_samples: int | None) -> None:
        """Take back what a duplex session said after so many samples of `unit`, None for all of them.

        `unit` is finalised. It acts between the units with an order to generate and the first one without,
        and is answered by `Rewound`.
        """

    def close(self) -> None:
        """Drop whatever is pending and release everything; answered by `Closed`. Idempotent."""


class Engine(Protocol):
    """The model and its batching loop."""

    @property
    def info(self) -> ModelInfo:
        """What the loaded model is."""

    @property
    def slots(self) -> int:
        """How many sessions fit at once."""

    def watch(self, on_ticks: OnTicks) -> None:
        """Tell `on_ticks` too of every tick from now on."""

    def occupancy(self) -> Occupancy:
        """Return how full it is now."""

    @property
    def busy_since(self) -> float | None:
        """When, on its monotonic clock, its thread began the step that it is at; None while it waits."""

    def open(self, session_id: str, slot: int, setup: SessionSetup, sink: Sink) -> EngineSession:
        """Start a session in a slot, from 0 to `slots` - 1; `Ready` or `SessionFailed` follows.

        The slots are the caller's: it gives one away again only after the `Closed` of the session before. If
        this raises, there is no session and nothing is in the slot.
        """

    def stop(self) -> None:
        """End the engine's thread and wait for it; no event comes after. Idempotent."""
