"""The unit that a session is working on, whatever its kind: its clock, and its count of tokens."""

import time
from dataclasses import KW_ONLY, dataclass, field
from typing import Generic

from inference_service.api.engine import Done, End, Failure, Finish, Prefilled, UnitTimings, UnitUsage
from inference_service.engine.sessions.preprocessing import Prepared
from inference_service.engine.sessions.queue import QueuedUnit


@dataclass
class Run(Generic[Prepared]):
    """The unit being worked on. Times are monotonic seconds, 0 for what has not happened."""

    unit: QueuedUnit[Prepared]
    _: KW_ONLY
    started: float = field(default_factory=time.monotonic)
    text_rows: int = 0
    """Input rows that are tokens, those carried from the unit before and marks round media included."""
    vision_rows: int = 0
    vision_slices: int = 0
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
    speech_s: float = 0.0
    vocoder_s: float = 0.0

    @property
    def number(self) -> int:
        """The unit's number."""
        return self.unit.number

    def begin_speech(self) -> None:
        """Words wait to be said aloud from now on."""
        self.speaking_since = time.monotonic()

    def end_speech(self, spoken_at: float) -> None:
        """The speech head was done with them at `spoken_at`, the vocoder is now."""
        self.speech_s += spoken_at - self.speaking_since
        self.vocoder_s += time.monotonic() - spoken_at

    def usage(self) -> UnitUsage:
        """Its tokens so far."""
        return UnitUsage(
            input_text_tokens=self.text_rows,
            input_audio_tokens=self.audio_rows,
            input_vision_tokens=self.vision_rows,
            cached_tokens=self.cached,
            output_text_tokens=self.sampled,
            output_audio_tokens=self.codes,
        )

    def timings(self) -> UnitTimings:
        """Where its time went so far; a part that did not run took none."""
        now = time.monotonic()
        voice = self.speech_s + self.vocoder_s
        return UnitTimings(
            queue=self.started - self.unit.arrival,
            prefill=self.heard_at - self.started if self.heard_at else 0.0,
            decode=now - self.decided_at - voice if self.decided_at else 0.0,
            speech=self.speech_s,
            vocoder=self.vocoder_s,
            total=now - self.unit.arrival,
        )

    def prefilled(self, context_tokens: int) -> Prefilled:
        """The answer to its Prefill."""
        if self.failure is not None:
            return Prefilled(self.number, context_tokens, failure=self.failure)
        return Prefilled(
            self.number, context_tokens, self.usage(), self.timings(), vision_slices=self.vision_slices
        )

    def done(self, end: End, context_tokens: int) -> Done:
        """The last word about its generation."""
        failure = self.failure if end is End.FAILED else None
        return Done(self.number, end, self.finish, context_tokens, self.usage(), self.timings(), failure)
