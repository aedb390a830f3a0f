"""One session of any kind inside the engine: its units, the running unit, and its place in a tick."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from torch import Tensor

from inference_service.device.rows import Rows
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.draw import Draw
from inference_service.engine.batch.scheduler import UNIT_S
from inference_service.interface.engine import (
    Done,
    End,
    Event,
    Failure,
    Finish,
    Prefilled,
    Progress,
    SessionFailed,
    Sink,
    UnitTimings,
    UnitUsage,
)
from inference_service.interface.setups import Content, UnitOverrides, UnitRecord
from inference_service.media.pool import Priority

PROGRESS_S = 2.0
"""Seconds between progress events of a unit that takes long."""
HELD_BACK_S = 0.02
"""Seconds for which the `Prefilled` event waits, to be sent with the unit's first words."""


Prepared = TypeVar("Prepared")
"""Prepared input of a unit, as the engine takes it."""

Beside = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""Runs a job, possibly in another thread, and passes its result to the second function on the engine's
thread.
"""


class Preprocessor(ABC, Generic[Prepared]):
    """The preparation of a session's input: it turns the input of units, in order, into the engine's input.

    It runs outside the engine's thread, and touches nothing else of the session.
    """

    watch: Callable[[], None] = staticmethod(lambda: None)
    """Called about ten times a second by long work; raises once the result is no longer wanted."""

    def priority(self, content: Content | None) -> Priority | None:
        """Return the media pool's priority for preparing `content`; a `content` of None is the session's
        opening.

        None means that preparing takes less time than waking another thread: the caller prepares at once.
        """
        return Priority.SOUND

    def begin(self) -> None:
        """Prepare the session's opening; may take long. Raises `UnitRefused`."""

    @abstractmethod
    def prepare(self, content: Content) -> Prepared:
        """Return the prepared input. Raises `UnitRefused` for input that cannot be used."""


@dataclass
class QueuedUnit(Generic[Prepared]):
    """A unit's prepared input, with its orders to generate and finalise once they have arrived."""

    number: int
    input: Prepared | None
    """None if it cannot be used; `failure` says why."""
    arrival: float
    failure: Failure | None = None
    force_listen: bool = False
    overrides: UnitOverrides | None = None
    rejection: Failure | None = None
    """The reason why its order to generate cannot be followed; the order counts as received."""
    finalize: bool = False
    keep_last_token: bool = False
    reached: float = 0.0
    """Monotonic seconds at which the unit before it was closed, if that was after its arrival."""
    ordered: float = 0.0
    """Monotonic seconds at which its order to generate arrived; 0 if it came with the input."""


@dataclass(frozen=True)
class RewindOrder:
    """An order to remove the words after `heard_samples` of a unit; None keeps the whole unit."""

    unit: int
    heard_samples: int | None
    after: int
    """The unit that must be closed first; no later unit has been run."""
    arrival: float = field(default_factory=time.monotonic)


class UnitQueue(Generic[Prepared]):
    """The units of one session that are not closed, oldest first, and the number up to which they are
    cancelled.
    """

    def __init__(self) -> None:
        self._units: deque[QueuedUnit[Prepared]] = deque()
        self._cancelled_to = 0
        self.first: QueuedUnit[Prepared] | None = None
        """The running unit, or the next one."""
        self.rewinds: deque[RewindOrder] = deque()
        """Rewinds that have not been carried out, oldest first. The sender bounds their number."""

    def prefill(self, unit: QueuedUnit[Prepared]) -> None:
        """Append a unit."""
        self._units.append(unit)
        self.first = self._units[0]

    def generate(
        self, number: int, force_listen: bool, overrides: UnitOverrides, at: float | None = None
    ) -> None:
        """Allow the model to run on the unit once it is heard.

        `at` is the time of the order in monotonic seconds; None is now.
        """
        for unit in self._units:
            if unit.number == number:
                unit.force_listen, unit.overrides = force_listen, overrides
                unit.ordered = time.monotonic() if at is None else at

    def reject(self, number: int, failure: Failure) -> None:
        """Fail the unit once it is heard."""
        for unit in self._units:
            if unit.number == number:
                unit.rejection, unit.overrides = failure, UnitOverrides()

    def finalize(self, number: int, *, keep_last_token: bool = False) -> None:
        """Allow the unit to be closed once it is done."""
        for unit in self._units:
            if unit.number == number:
                unit.finalize, unit.keep_last_token = True, keep_last_token

    def cancel(self, number: int) -> None:
        """Cancel units up to and including `number`, also those that arrive later."""
        self._cancelled_to = max(self._cancelled_to, number)

    def rewind(self, number: int, heard_samples: int | None) -> None:
        """Queue a rewind behind all units that have an order to generate."""
        after = max((unit.number for unit in self._units if unit.overrides is not None), default=0)
        self.rewinds.append(RewindOrder(number, heard_samples, after))

    @property
    def may_rewind(self) -> bool:
        """Whether the next rewind has no unit left to wait for."""
        return bool(self.rewinds) and (self.first is None or self.first.number > self.rewinds[0].after)

    def is_cancelled(self, unit: QueuedUnit[Prepared]) -> bool:
        """Return whether the unit must end without further words."""
        return unit.number <= self._cancelled_to

    def close_first(self) -> None:
        """Remove the first unit, which is closed."""
        self._units.popleft()
        self.first = None
        if self._units:
            self.first = self._units[0]
            self.first.reached = time.monotonic()


@dataclass
class Run(Generic[Prepared]):
    """The running unit. Times are monotonic seconds, 0 for events that have not happened."""

    unit: QueuedUnit[Prepared]
    _: KW_ONLY
    started: float = field(init=False)
    text_rows: int = 0
    """Input rows that are tokens, including carried ones and the marks round media."""
    vision_rows: int = 0
    vision_slices: int = 0
    ignored_fields: tuple[str, ...] = ()
    """Settings of its input that have no effect."""
    audio_rows: int = 0
    cached: int = 0
    """Context entries that were cached before the unit."""
    sampled: int = 0
    codes: int = 0
    """Speech codes sampled."""
    finish: Finish | None = None
    failure: Failure | None = None
    heard_at: float = 0.0
    decided_at: float = 0.0
    speaking_since: float = 0.0
    record: UnitRecord | None = None
    """The unit's record, from which another session can replay it."""
    replayed: bool = False
    speech_s: float = 0.0
    vocoder_s: float = 0.0

    def __post_init__(self) -> None:
        self.started = time.monotonic()

    @property
    def number(self) -> int:
        return self.unit.number

    def begin_speech(self) -> None:
        """Start the timer of the speech head."""
        self.speaking_since = time.monotonic()

    def end_speech(self, spoken_at: float) -> None:
        """Add the time of the speech head, which ended at `spoken_at`, and of the vocoder, which ends now."""
        self.speech_s += spoken_at - self.speaking_since
        self.vocoder_s += time.monotonic() - spoken_at

    def usage(self) -> UnitUsage:
        """Return the unit's token counts so far."""
        return UnitUsage(
            input_text_tokens=self.text_rows,
            input_audio_tokens=self.audio_rows,
            input_vision_tokens=self.vision_rows,
            cached_tokens=self.cached,
            output_text_tokens=self.sampled,
            output_audio_tokens=self.codes,
        )

    def timings(self) -> UnitTimings:
        """Return the unit's timings so far; a part that did not run took no time."""
        now = time.monotonic()
        voice = self.speech_s + self.vocoder_s
        return UnitTimings(
            queue=self.started - max(self.unit.arrival, self.unit.reached),
            prefill=self.heard_at - self.started if self.heard_at else 0.0,
            decode=now - self.decided_at - voice if self.decided_at else 0.0,
            speech=self.speech_s,
            vocoder=self.vocoder_s,
            total=now - self.unit.arrival,
        )

    def prefilled(self, context_tokens: int) -> Prefilled:
        """Return the answer to its Prefill."""
        if self.failure is not None:
            return Prefilled(self.number, context_tokens, failure=self.failure)
        return Prefilled(
            self.number,
            context_tokens,
            self.usage(),
            self.timings(),
            vision_slices=self.vision_slices,
            ignored_fields=self.ignored_fields,
        )

    def done(self, end: End, context_tokens: int) -> Done:
        """Return the last answer to its Generate."""
        failure = self.failure if end is End.FAILED else None
        return Done(
            self.number,
            end,
            self.finish,
            context_tokens,
            self.usage(),
            self.timings(),
            failure,
            self.record,
            self.replayed,
        )


class Stage(Enum):
    """The stages of a session in the loop over its units."""

    OPENING = auto()
    """The session waits for the runtime to start it."""
    PROMPT = auto()
    """The rows before the first unit are being fed."""
    IDLE = auto()
    PREFILL = auto()
    """The input of a unit is being fed."""
    HEARD = auto()
    """The input is in the context; the order to generate has not been applied yet."""
    DECODE = auto()
    SPEAK = auto()
    """Text waits for the speech head."""
    REWIND = auto()
    """The units after the restore point are being fed again."""
    DONE = auto()
    """The last answer of the unit is out; the unit waits to be closed."""
    FAILED = auto()
    """The session cannot go on, and waits to be closed."""


@dataclass(eq=False)
class Session(ABC, Generic[Prepared]):
    """One session inside the engine: its slot, context, orders and events.

    Only the engine thread touches it, except for `preprocessor`, which belongs to the media pool. A tick
    calls, for each session that is ready: `end_unit`, `finalize`; `rewind`; the runtime's `see` for `slices`;
    `refuse_unit`, then the runtime's `hear`; `take` after a forward; `begin_generate`, `draw`, `decide`,
    `feed`; `speech_job`, `spoken`.
    """

    id: str
    slot: int
    sink: Sink
    context: Context
    preprocessor: Preprocessor[Prepared]
    _: KW_ONLY
    kind: "SessionKind[Any]" = field(init=False, repr=False)
    """The kind that made the session."""
    stage: Stage = Stage.PROMPT
    opened: float = field(default_factory=time.monotonic)
    preparing: Iterator[None] | None = None
    """Work before the start, done in portions in stage OPENING."""
    queue: UnitQueue[Prepared] = field(default_factory=UnitQueue)
    to_feed: Rows | None = None
    """Rows that wait for a forward."""
    last_hidden: Tensor | None = None
    """Final hidden state [hidden] of the last row fed, from which the next token is decided."""
    usage: UnitUsage = field(default_factory=UnitUsage)
    events: list[Event] = field(default_factory=list)
    seen: list[Tensor] = field(default_factory=list)
    """Embeddings [n, hidden] of those of `slices` that were encoded, from the first on."""
    _told: float = field(default_factory=time.monotonic)
    _held_since: float | None = None
    beside: "Beside" = field(default=lambda job, then: then(job()), repr=False)
    """Runs long work that needs no device."""

    def holds_back(self, now: float) -> bool:
        """Return whether its events wait for those of the next ticks, so that the caller is woken once.

        Only the `Prefilled` event of a unit waits, for the unit's first words.
        """
        if self.stage is not Stage.DECODE or self.to_feed is None:
            return False
        if len(self.events) > 1 or not isinstance(self.events[0], Prefilled):
            return False
        if self._held_since is None:
            self._held_since = now
        return now - self._held_since < HELD_BACK_S

    def take_events(self, now: float) -> list[Event]:
        """Return the events since the last call; they count as progress."""
        events, self.events, self._held_since = self.events, [], None
        self._told = now
        return events

    def may_tell(self, now: float) -> bool:
        """Return whether the session has sent no event for `PROGRESS_S`."""
        return now - self._told >= PROGRESS_S

    def tell_progress(self, now: float) -> None:
        """Report progress once in `PROGRESS_S` while the engine ticks and this session has work.

        A queued session reports progress too. Unit 0 stands for the prompt.
        """
        if self.may_tell(now):
            self._told = now
            self.events.append(Progress(self.queue.first.number if self.queue.first else 0))

    @property
    def arrival(self) -> float:
        """Monotonic seconds at which the session's current work arrived."""
        return self.queue.first.arrival if self.queue.first else self.opened

    @property
    def is_background(self) -> bool:
        """Whether its work yields to that of all other sessions."""
        return False

    @property
    def defers_others(self) -> bool:
        """Whether other sessions begin no unit while this session is short of time."""
        return True

    @property
    def unit_s(self) -> float:
        """Seconds that a unit may take from its arrival."""
        return UNIT_S

    @property
    def due(self) -> float | None:
        """The deadline of the current work in monotonic seconds; None if it has none."""
        return None

    def slices(self) -> Sequence[Any]:
        """Return the slices of pictures to encode before the next unit, or its next portion, is heard."""
        return ()

    @property
    def clip_rows(self) -> int:
        """Audio embeddings of the next portion, which count against the tick's limit for non-urgent sessions.

        A live unit of a conversation counts none, and a replayed one all of its audio.
        """
        return 0

    @property
    def wants_unit(self) -> bool:
        """Whether the next unit, or the next portion of one, may be heard now."""
        if self.stage is Stage.PREFILL:
            return self.to_feed is None
        return self.stage is Stage.IDLE and self.queue.first is not None

    @property
    def wants_decision(self) -> bool:
        """Whether the next token may be decided now, from the hidden state of the last row."""
        first = self.queue.first
        if self.stage is Stage.HEARD:
            return first is not None and first.overrides is not None
        return self.stage is Stage.DECODE and self.to_feed is None

    @property
    def wants_end(self) -> bool:
        """Whether the running unit may be closed now."""
        return self.stage is Stage.DONE and self.queue.first is not None and self.queue.first.finalize

    @property
    def has_work(self) -> bool:
        """Whether a tick would do any work for this session."""
        waits = self.to_feed is not None or self.stage in (Stage.SPEAK, Stage.OPENING)
        return waits or self.wants_unit or self.wants_decision or self.wants_end or self.wants_rewind

    @property
    def wants_rewind(self) -> bool:
        """Whether a rewind may be carried out now."""
        return False

    def rewind(self) -> None:
        """Carry out the next rewind."""
        raise TypeError("This kind of session cannot rewind.")

    @abstractmethod
    def refuse_unit(self) -> bool:
        """Return whether the next unit cannot be used or no longer fits; such a unit is answered without
        being heard.
        """

    def take(self, count: int, hidden: Tensor | None) -> None:
        """Take the result of a forward of `count` rows, at most those that wait.

        `hidden` [hidden] belongs to the last row; None if it is not finite.
        """
        assert self.to_feed is not None
        if hidden is None:
            self.poisoned()
            return
        self.context.advance(count)
        if count < len(self.to_feed):
            self.to_feed = self.to_feed[count:]
        else:
            self.to_feed, self.last_hidden = None, hidden
            self.taken()

    @abstractmethod
    def taken(self) -> None:
        """Note that all waiting rows are in the context."""

    @abstractmethod
    def poisoned(self) -> None:
        """Fail the running unit because hidden states or scores are not finite."""

    @abstractmethod
    def begin_generate(self) -> bool:
        """Apply the heard unit's orders; return False if it ends without the model."""

    def foresee(self) -> Draw | None:
        """Return how the next token will be drawn after the waiting rows, if nothing happens in between.

        It changes no state. A token drawn by it counts only if `draw` then returns an equal `Draw`.
        """
        return None

    @abstractmethod
    def draw(self) -> Draw | None:
        """Return how the next token is to be drawn; None if no further token is drawn."""

    @abstractmethod
    def decide(self, token: int | None) -> int | None:
        """Take the drawn token, or None if the scores are not finite; return the token to feed, or None."""

    @abstractmethod
    def feed(self, token: int) -> None:
        """Queue the decided token for the next forward."""

    def conclude(self, run: Run[Prepared], end: End) -> None:
        """Send the last answer of the running unit, which then waits to be closed."""
        done = run.done(end, self.context.tokens)
        self.usage = summed(self.usage, done.usage)
        self.events.append(done)
        self.stage = Stage.DONE

    @abstractmethod
    def end_unit(self) -> None:
        """Close the unit in the context, before the window slides."""

    @abstractmethod
    def finalize(self) -> None:
        """End the unit, and let the window drop the oldest units."""

    def fail(self, failure: SessionFailed) -> None:
        """End the session with a failure."""
        self.to_feed = self.last_hidden = self.preparing = None
        self.stage = Stage.FAILED
        self.events.append(failure)

    def leave(self) -> None:
        """Release the session's device memory outside its slot."""
        self.to_feed = self.last_hidden = self.preparing = None
        self.seen = []


S = TypeVar("S", bound=Session[Any])


class SessionKind(ABC, Generic[S]):
    """One kind of session of one model: it creates and starts sessions, and encodes their units."""

    @abstractmethod
    def open(self, session_id: str, slot: int, setup: Any, sink: Sink) -> S:
        """Return a session in a slot that is clean. Any thread may call this."""

    def rows_of(self, system_prompt: str) -> Iterable[Rows]:
        """Yield the rows of every context prefix that depends on this system prompt alone.

        Kinds without a system prompt yield none.
        """
        return ()

    def prepare(self, session: S) -> Iterator[None]:
        """Do long work that `start` depends on, in portions; most kinds have none."""
        return iter(())

    @abstractmethod
    def start(self, session: S) -> SessionFailed | None:
        """Begin the session's context; return the refusal of settings that do not fit this model."""

    @abstractmethod
    def hear(self, sessions: Sequence[S]) -> None:
        """Give each session the embeddings of its next unit to feed; its pictures have been encoded.

        If it raises, only the sessions that already got their embeddings, and the one named by `blame`, have
        changed.
        """


def summed(one: UnitUsage, other: UnitUsage) -> UnitUsage:
    """Return the sum of two token counts."""
    return UnitUsage(
        one.input_text_tokens + other.input_text_tokens,
        one.input_audio_tokens + other.input_audio_tokens,
        one.input_vision_tokens + other.input_vision_tokens,
        one.cached_tokens + other.cached_tokens,
        one.output_text_tokens + other.output_text_tokens,
        one.output_audio_tokens + other.output_audio_tokens,
    )
