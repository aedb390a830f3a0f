"""One session inside the engine, whatever its kind: its units, the one under way, and its place in a tick."""

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
"""How often a unit that takes long shows that it is getting on."""
HELD_BACK_S = 0.02
"""So long that a unit was heard waits to be told with its first words."""


Prepared = TypeVar("Prepared")
"""What the engine is given of a unit."""

Beside = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""Does a job, perhaps in another thread, and hands what it gives to the other on the engine's."""


class Preprocessor(ABC, Generic[Prepared]):
    """Makes of the input of one session's units, in their order, what the engine works on.

    It does so beside the engine's own thread, and touches nothing else of the session.
    """

    watch: Callable[[], None] = staticmethod(lambda: None)
    """Called by work that takes long, ten times a second or so; raises once nobody wants it any more."""

    def priority(self, content: Content | None) -> Priority | None:
        """Return what it is for the media pool to prepare that; None is what the session begins with.

        None for what is done sooner than another thread is woken: whoever brings it prepares it at once.
        """
        return Priority.SOUND

    def begin(self) -> None:
        """Prepare what the session begins with; may take long. Raises `UnitRefused`."""

    @abstractmethod
    def prepare(self, content: Content) -> Prepared:
        """Return what the engine is given. Raises `UnitRefused` for input that cannot be used."""


@dataclass
class QueuedUnit(Generic[Prepared]):
    """A unit's prepared input and, once they have come, its orders to generate and finalise."""

    number: int
    input: Prepared | None
    """None if it cannot be used; `failure` says why."""
    arrival: float
    failure: Failure | None = None
    force_listen: bool = False
    overrides: UnitOverrides | None = None
    rejection: Failure | None = None
    """Why its order to generate cannot be followed; it has come all the same."""
    finalize: bool = False
    keep_last_token: bool = False
    reached: float = 0.0
    """When the unit before it was closed, where it came before that; monotonic seconds."""
    ordered: float = 0.0
    """When its order to generate came; monotonic seconds, 0 if it came with the input."""


@dataclass(frozen=True)
class RewindOrder:
    """An order to take back the words after so many samples of a unit, None for all of them."""

    unit: int
    heard_samples: int | None
    after: int
    """The unit that must be closed before; no later one has been decided."""
    arrival: float = field(default_factory=time.monotonic)


class UnitQueue(Generic[Prepared]):
    """The units of one session that are not closed yet, oldest first, and how far it is cancelled."""

    def __init__(self) -> None:
        self._units: deque[QueuedUnit[Prepared]] = deque()
        self._cancelled_to = 0
        self.first: QueuedUnit[Prepared] | None = None
        """The unit that is or will be worked on."""
        self.rewinds: deque[RewindOrder] = deque()
        """Those that have not been carried out, oldest first. Whoever orders them bounds their number."""

    def prefill(self, unit: QueuedUnit[Prepared]) -> None:
        """Append a unit."""
        self._units.append(unit)
        self.first = self._units[0]

    def generate(
        self, number: int, force_listen: bool, overrides: UnitOverrides, at: float | None = None
    ) -> None:
        """Allow the unit to be decided once it is heard; the order came `at` monotonic seconds, or now."""
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
        """Cancel units up to and including `number`, also those that have not come yet."""
        self._cancelled_to = max(self._cancelled_to, number)

    def rewind(self, number: int, heard_samples: int | None) -> None:
        """Take back later words once all units that may be decided are closed."""
        after = max((unit.number for unit in self._units if unit.overrides is not None), default=0)
        self.rewinds.append(RewindOrder(number, heard_samples, after))

    @property
    def may_rewind(self) -> bool:
        """Whether the next rewind waits for no unit any more."""
        return bool(self.rewinds) and (self.first is None or self.first.number > self.rewinds[0].after)

    def is_cancelled(self, unit: QueuedUnit[Prepared]) -> bool:
        """Return whether the unit is to end without another word."""
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
    """The unit being worked on. Times are monotonic seconds, 0 for what has not happened."""

    unit: QueuedUnit[Prepared]
    _: KW_ONLY
    started: float = field(init=False)
    text_rows: int = 0
    """Input rows that are tokens, those carried from the unit before and marks round media included."""
    vision_rows: int = 0
    vision_slices: int = 0
    ignored_fields: tuple[str, ...] = ()
    """Settings of its input that have no effect."""
    audio_rows: int = 0
    cached: int = 0
    """Entries of the context that were there before it."""
    sampled: int = 0
    codes: int = 0
    """Speech codes drawn."""
    finish: Finish | None = None
    failure: Failure | None = None
    heard_at: float = 0.0
    decided_at: float = 0.0
    speaking_since: float = 0.0
    record: UnitRecord | None = None
    """What another session needs to replay it."""
    replayed: bool = False
    speech_s: float = 0.0
    vocoder_s: float = 0.0

    def __post_init__(self) -> None:
        self.started = time.monotonic()

    @property
    def number(self) -> int:
        """The unit's number."""
        return self.unit.number

    def begin_speech(self) -> None:
        """Begin the wait of words for speech."""
        self.speaking_since = time.monotonic()

    def end_speech(self, spoken_at: float) -> None:
        """End the speech head's work at `spoken_at`; the vocoder's ends now."""
        self.speech_s += spoken_at - self.speaking_since
        self.vocoder_s += time.monotonic() - spoken_at

    def usage(self) -> UnitUsage:
        """Return its tokens so far."""
        return UnitUsage(
            input_text_tokens=self.text_rows,
            input_audio_tokens=self.audio_rows,
            input_vision_tokens=self.vision_rows,
            cached_tokens=self.cached,
            output_text_tokens=self.sampled,
            output_audio_tokens=self.codes,
        )

    def timings(self) -> UnitTimings:
        """Return where its time went so far; a part that did not run took none."""
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
        """Return the last word about its generation."""
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
    """It waits for the runtime to start it."""
    PROMPT = auto()
    """What stands before the first unit is being fed."""
    IDLE = auto()
    PREFILL = auto()
    """The input of a unit is being fed."""
    HEARD = auto()
    """It is in the context; the order to generate has not been looked at."""
    DECODE = auto()
    SPEAK = auto()
    """Text waits to be said aloud."""
    REWIND = auto()
    """What was heard after the point that it goes back to is being fed again."""
    DONE = auto()
    """The last word about the unit is out; it waits to be closed."""
    FAILED = auto()
    """It cannot go on, and waits for its end."""


@dataclass(eq=False)
class Session(ABC, Generic[Prepared]):
    """One session inside the engine: its slot, its context, its orders and what it has to say.

    Only the engine thread touches it, but for `preprocessor`, which is the media pool's. A tick calls, for
    whoever is ready: `end_unit`, `finalize`; `rewind`; the runtime's `see` for `slices`; `refuse_unit`, then
    the runtime's `hear`; `take` after a forward; `begin_generate`, `draw`, `decide`, `feed`; `speech_job`,
    `spoken`.
    """

    id: str
    slot: int
    sink: Sink
    context: Context
    preprocessor: Preprocessor[Prepared]
    _: KW_ONLY
    kind: "SessionKind[Any]" = field(init=False, repr=False)
    """What has made it."""
    stage: Stage = Stage.PROMPT
    opened: float = field(default_factory=time.monotonic)
    preparing: Iterator[None] | None = None
    """Its work before the start, done in portions in stage OPENING."""
    queue: UnitQueue[Prepared] = field(default_factory=UnitQueue)
    to_feed: Rows | None = None
    """What waits for a forward."""
    last_hidden: Tensor | None = None
    """Final hidden state [hidden] of the row fed last, from which the next token is decided."""
    usage: UnitUsage = field(default_factory=UnitUsage)
    events: list[Event] = field(default_factory=list)
    seen: list[Tensor] = field(default_factory=list)
    """Embeddings [n, hidden] of the first of `slices`."""
    _told: float = field(default_factory=time.monotonic)
    _held_since: float | None = None
    beside: "Beside" = field(default=lambda job, then: then(job()), repr=False)
    """What takes long and is none of the device's business is done by it."""

    def holds_back(self, now: float) -> bool:
        """Return whether its events go with those that come of the next ticks: whoever is told is woken once.

        That a unit was heard waits so for its first words, while these are being decided.
        """
        if self.stage is not Stage.DECODE or self.to_feed is None:
            return False
        if len(self.events) > 1 or not isinstance(self.events[0], Prefilled):
            return False
        if self._held_since is None:
            self._held_since = now
        return now - self._held_since < HELD_BACK_S

    def take_events(self, now: float) -> list[Event]:
        """Return what has happened since they were taken last; whoever is told of them sees that it gets
        on."""
        events, self.events, self._held_since = self.events, [], None
        self._told = now
        return events

    def may_tell(self, now: float) -> bool:
        """Return whether it has told nothing for a while."""
        return now - self._told >= PROGRESS_S

    def tell_progress(self, now: float) -> None:
        """Report progress once in `PROGRESS_S` while a tick was made and this session has work.

        Whoever waits for its turn has not been forgotten. Unit 0 is what stands before the first one.
        """
        if self.may_tell(now):
            self._told = now
            self.events.append(Progress(self.queue.first.number if self.queue.first else 0))

    @property
    def arrival(self) -> float:
        """Monotonic seconds since which the session's current work has been waiting."""
        return self.queue.first.arrival if self.queue.first else self.opened

    @property
    def is_background(self) -> bool:
        """Whether its work waits for that of all other sessions."""
        return False

    @property
    def defers_others(self) -> bool:
        """Whether other sessions begin no unit while one of this session is short of time."""
        return True

    @property
    def unit_s(self) -> float:
        """Seconds that a unit may take from its arrival on."""
        return UNIT_S

    @property
    def due(self) -> float | None:
        """Monotonic seconds at which the work under way should be done; None if it has no deadline."""
        return None

    def slices(self) -> Sequence[Any]:
        """Return the slices of pictures that must be seen before the next unit, or portion of one, is
        heard."""
        return ()

    @property
    def clip_rows(self) -> int:
        """Embeddings of the sound in that portion, beyond the second that a unit has anyway.

        Of a replayed unit they are all that it has.
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
        """Whether the pending logits may be turned into a decision now."""
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
        """Whether a tick would do anything for this session."""
        waits = self.to_feed is not None or self.stage in (Stage.SPEAK, Stage.OPENING)
        return waits or self.wants_unit or self.wants_decision or self.wants_end or self.wants_rewind

    @property
    def wants_rewind(self) -> bool:
        """Whether what was said is to be taken back now."""
        return False

    def rewind(self) -> None:
        """Take it back."""
        raise TypeError("This kind of session cannot go back.")

    @abstractmethod
    def refuse_unit(self) -> bool:
        """Return whether the next unit does not fit any more or cannot be used: then it is answered, not
        heard."""

    def take(self, count: int, hidden: Tensor | None) -> None:
        """`count` rows were fed, at most what waits; `hidden` [hidden] is of the last, None if no number."""
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
        """Hidden states or scores are not numbers: the running unit fails."""

    @abstractmethod
    def begin_generate(self) -> bool:
        """Apply the heard unit's orders; False if it ends without the model."""

    def foresee(self) -> Draw | None:
        """Return how the next token will be drawn once all that waits has been fed, if nothing comes between.

        Moves nothing. What is drawn by it counts only if `draw` says the same then.
        """
        return None

    @abstractmethod
    def draw(self) -> Draw | None:
        """Return how the next token is to be drawn; None if there is none to draw any more."""

    @abstractmethod
    def decide(self, token: int | None) -> int | None:
        """Take what was drawn, or None for scores that are no numbers: the token to feed, or None."""

    @abstractmethod
    def feed(self, token: int) -> None:
        """Put the decided token into the next forward."""

    def conclude(self, run: Run[Prepared], end: End) -> None:
        """Give the last word about the running unit; it waits to be closed."""
        done = run.done(end, self.context.tokens)
        self.usage = summed(self.usage, done.usage)
        self.events.append(done)
        self.stage = Stage.DONE

    @abstractmethod
    def end_unit(self) -> None:
        """Close the unit in the context, before the window is seen to."""

    @abstractmethod
    def finalize(self) -> None:
        """End the unit, and let the window drop what has become too old."""

    def fail(self, failure: SessionFailed) -> None:
        """End the session with a failure."""
        self.to_feed = self.last_hidden = self.preparing = None
        self.stage = Stage.FAILED
        self.events.append(failure)

    def leave(self) -> None:
        """Give back what the session holds on the device beside its slot."""
        self.to_feed = self.last_hidden = self.preparing = None
        self.seen = []


S = TypeVar("S", bound=Session[Any])


class SessionKind(ABC, Generic[S]):
    """One kind of session of one model: makes its sessions, begins them, and has them hear their units."""

    @abstractmethod
    def open(self, session_id: str, slot: int, setup: Any, sink: Sink) -> S:
        """Return a session in a slot that is clean. Any thread may call this."""

    def rows_of(self, system_prompt: str) -> Iterable[Rows]:
        """Return every beginning of a context that this system prompt alone decides; none for kinds without
        one."""
        return ()

    def prepare(self, session: S) -> Iterator[None]:
        """Do what `start` needs and what takes long, in portions; nothing for most kinds."""
        return iter(())

    @abstractmethod
    def start(self, session: S) -> SessionFailed | None:
        """Begin the session's context; the refusal if its settings do not fit this model."""

    @abstractmethod
    def hear(self, sessions: Sequence[S]) -> None:
        """Hand each session the embeddings of its next unit to feed; its pictures have been seen.

        If it raises, no session has moved, but for those that have theirs and the one to `blame`.
        """


def summed(one: UnitUsage, other: UnitUsage) -> UnitUsage:
    """Return tokens of both together."""
    return UnitUsage(
        one.input_text_tokens + other.input_text_tokens,
        one.input_audio_tokens + other.input_audio_tokens,
        one.input_vision_tokens + other.input_vision_tokens,
        one.cached_tokens + other.cached_tokens,
        one.output_text_tokens + other.output_text_tokens,
        one.output_audio_tokens + other.output_audio_tokens,
    )
