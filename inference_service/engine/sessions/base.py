"""What every session in a tick has and can do, whatever its kind."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, auto
from typing import Any, Generic

from torch import Tensor

from inference_service.api.engine import Advanced, Event, SessionFailed, Sink, UnitUsage
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.speech import SpeechJob
from inference_service.engine.sessions.components import MouthState
from inference_service.engine.sessions.preprocessing import Prepared, Preprocessor
from inference_service.engine.sessions.queue import UnitQueue

PROGRESS_S = 2.0
"""How often a unit that takes long shows that it is getting on."""


class Stage(Enum):
    """Where a session is in the loop over its units."""

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
    DONE = auto()
    """The last word about the unit is out; it waits to be closed."""
    FAILED = auto()
    """It cannot go on, and waits for its end."""


@dataclass(eq=False)
class Session(ABC, Generic[Prepared]):
    """One session inside the engine: its slot, its context, its orders and what it has to say.

    Only the engine thread touches it, but for `preprocessor`, which is the media pool's. A tick calls, for
    whoever is ready: `end_unit`, `finalize`; the runtime's `see` for `slices`; `refuse_unit`, then the
    runtime's `hear`; `take` after a forward; `begin_generate`, `decide`, `feed`; `speech_job`, `spoken`.
    """

    id: str
    slot: int
    sink: Sink
    context: Context
    preprocessor: Preprocessor[Prepared]
    _: KW_ONLY
    stage: Stage = Stage.PROMPT
    opened: float = field(default_factory=time.monotonic)
    queue: UnitQueue[Prepared] = field(default_factory=UnitQueue)
    to_feed: Tensor | None = None
    """Embeddings [n, hidden] that wait for a forward."""
    last_hidden: Tensor | None = None
    """Final hidden state [hidden] of the row fed last, from which the next token is decided."""
    usage: UnitUsage = field(default_factory=UnitUsage)
    events: list[Event] = field(default_factory=list)
    seen: list[Tensor] = field(default_factory=list)
    """Embeddings [n, hidden] of the first of `slices`."""
    _told: float = field(default_factory=time.monotonic)

    def may_tell(self, now: float) -> bool:
        """Whether it has told no progress for a while."""
        return now - self._told >= PROGRESS_S

    def tell_progress(self, now: float) -> None:
        """A tick has been made while there was work for this session: that is said once in `PROGRESS_S`.

        Whoever waits for its turn has not been forgotten. Unit 0 is what stands before the first one.
        """
        if self.may_tell(now):
            self._told = now
            self.events.append(Advanced(self.queue.first.number if self.queue.first else 0))

    @property
    def arrival(self) -> float:
        """Monotonic seconds since which the session's current work has been waiting."""
        return self.queue.first.arrival if self.queue.first else self.opened

    @property
    def due(self) -> float | None:
        """Monotonic seconds at which the work under way should be done; None if it has no deadline."""
        return None

    def slices(self) -> Sequence[Any]:
        """Slices of pictures that must have been seen before the next unit, or portion of one, is heard."""
        return ()

    @property
    def clip_rows(self) -> int:
        """Embeddings of the sound in that portion, beyond the second that a unit has anyway."""
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
        return waits or self.wants_unit or self.wants_decision or self.wants_end

    @abstractmethod
    def refuse_unit(self) -> bool:
        """Whether the next unit does not fit any more or cannot be used: then it is answered, not heard."""

    def take(self, hidden: Tensor | None) -> None:
        """Hidden states [n, hidden] of the rows just fed, `n` at most what waits; None if not numbers."""
        assert self.to_feed is not None
        if hidden is None:
            self.poisoned()
            return
        self.context.advance(len(hidden))
        self.fed(hidden)
        self.to_feed = self.to_feed[len(hidden) :]
        if not len(self.to_feed):
            self.to_feed, self.last_hidden = None, hidden[-1]
            self.taken()

    def fed(self, hidden: Tensor) -> None:
        """Hidden states [n, hidden] of the rows fed last."""

    @abstractmethod
    def taken(self) -> None:
        """All rows that waited are in the context."""

    @abstractmethod
    def poisoned(self) -> None:
        """Hidden states or scores are not numbers: the running unit fails."""

    @abstractmethod
    def begin_generate(self) -> bool:
        """Applies the heard unit's orders; False if it ends without the model."""

    @abstractmethod
    def decide(self, logits: Tensor) -> int | None:
        """Takes one decision on float32 scores [vocabulary]: the token to feed, or None."""

    @abstractmethod
    def feed(self, token: int, embeds: Tensor) -> None:
        """The decided token, embedded as [1, hidden], goes into the next forward."""

    @abstractmethod
    def end_unit(self) -> None:
        """Closes the unit in the context, before the window is seen to."""

    @abstractmethod
    def finalize(self) -> None:
        """The unit is over, and the window drops what has become too old."""

    def fail(self, failure: SessionFailed) -> None:
        """The session has come to its end, and takes part in nothing any more."""
        self.to_feed = self.last_hidden = None
        self.stage = Stage.FAILED
        self.events.append(failure)

    def leave(self) -> None:
        """Gives back what the session holds on the device beside its slot."""
        self.to_feed = self.last_hidden = None
        self.seen = []


class SpeakingSession(ABC):
    """A session with a voice."""

    mouth: MouthState | None
    """None for a session without a voice, and before it has begun."""

    @abstractmethod
    def speech_job(self) -> SpeechJob | None:
        """The speech under way in stage SPEAK; None if nothing more is to be said aloud."""

    @abstractmethod
    def spoken(self, audio: Tensor | None, spoken_at: float) -> None:
        """The job's speech is ready, float32 [samples], or there is none."""
