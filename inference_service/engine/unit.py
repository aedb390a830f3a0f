"""One unit: its sound and its orders, and what becomes of it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from inference_service.engine.api import (
    DuplexSettings,
    End,
    Failure,
    Finish,
    UnitOverrides,
    UnitTimings,
    UnitUsage,
)
from inference_service.engine.speech import SpeechJob
from inference_service.models.audio_encoder import AudioState


@dataclass
class PendingUnit:
    """A unit's mel features and, once they have come, its orders to generate and finalise."""

    number: int
    mel: Tensor
    arrival: float
    force_listen: bool = False
    overrides: UnitOverrides | None = None
    finalize: bool = False


@dataclass
class Running:
    """The unit being worked on. Times are monotonic seconds, 0 for what has not happened."""

    unit: PendingUnit
    settings: DuplexSettings
    started: float
    ear_before: AudioState
    turn_was_open: bool
    text_rows: int = 0
    """Rows of its first forward that are tokens: carried ones and `<unit>`."""
    audio_rows: int = 0
    cached: int = 0
    """Entries of the context that were there before it."""
    most_steps: int = 0
    steps: int = 0
    """Decided tokens that have been fed."""
    sampled: int = 0
    said: list[int] = field(default_factory=list)
    """What the speech head is given: every token fed but the first, which is never text."""
    hidden: list[Tensor] = field(default_factory=list)
    """Hidden states of `said`, each [hidden]."""
    turn_ended: bool = False
    """Whether the last token fed ended the turn."""
    generator: torch.Generator | None = None
    """Where the unit's draws come from, if not from the session's generators."""
    job: SpeechJob | None = None
    terminator: int | None = None
    """What its end leaves in the context; None if nothing of the unit is in it."""
    end: End = End.LISTEN
    finish: Finish | None = None
    failure: Failure | None = None
    heard_at: float = 0.0
    decided_at: float = 0.0
    decoded_at: float = 0.0
    spoken_at: float = 0.0

    @property
    def number(self) -> int:
        """The unit's number."""
        return self.unit.number

    def usage(self) -> UnitUsage:
        """Its tokens so far."""
        return UnitUsage(
            input_text_tokens=self.text_rows,
            input_audio_tokens=self.audio_rows,
            cached_tokens=self.cached,
            output_text_tokens=self.sampled,
            output_audio_tokens=len(self.job.codes) if self.job else 0,
        )

    def timings(self, now: float) -> UnitTimings:
        """Where its time went until `now`; a part that did not run took none."""
        decoded = self.decoded_at or now
        return UnitTimings(
            queue=self.started - self.unit.arrival,
            prefill=self.heard_at - self.started if self.heard_at else 0.0,
            decode=decoded - self.decided_at if self.decided_at else 0.0,
            speech=self.spoken_at - decoded if self.spoken_at else 0.0,
            vocoder=now - self.spoken_at if self.spoken_at else 0.0,
            total=now - self.unit.arrival,
        )
