"""The duplex unit that a session is working on."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from inference_service.api.engine import End, Piece
from inference_service.api.setups import DuplexSettings, UnitOverrides
from inference_service.engine.batch.speech import SpeechJob, SpeechState
from inference_service.engine.sessions.preprocessing import Perceived
from inference_service.engine.sessions.run import Run
from inference_service.models.tokenizer import Tokenizer

MAX_CHARACTERS = 28
"""A unit says fewer characters than this; the token that would reach it is not said."""


@dataclass
class DuplexRun(Run[Perceived]):
    """The duplex unit being worked on."""

    settings: DuplexSettings
    ear_before: Any
    """State of the ear."""
    turn_was_open: bool
    most_steps: int = 0
    steps: int = 0
    """Decided tokens that have been fed."""
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

    def begin(self, settings: DuplexSettings, overrides: UnitOverrides, room: int) -> None:
        """The unit may be decided; it may feed at most `room` tokens."""
        self.decided_at = time.monotonic()
        self.settings = overrides.apply(settings)
        self.most_steps = min(self.settings.max_new_speak_tokens_per_chunk, room)
        if overrides.seed is not None:
            self.generator = torch.Generator().manual_seed(overrides.seed)

    def feed(self, token: int, *, ends_turn: bool) -> None:
        """A decided token goes into the next forward."""
        if self.steps > 0:
            self.said.append(token)
        self.steps += 1
        self.turn_ended = ends_turn

    def fed(self, hidden: Tensor) -> None:
        """The hidden state [hidden] of the token fed last."""
        if self.said:
            self.hidden.append(hidden)

    @property
    def has_room(self) -> bool:
        """Whether one more step is allowed; the last one belongs to the terminator."""
        return self.steps + 1 < self.most_steps

    @property
    def is_at_last_step(self) -> bool:
        """Whether the next token is the last one that is fed."""
        return self.steps + 2 >= self.most_steps

    def is_too_long_with(self, token: int, tokenizer: Tokenizer) -> bool:
        """Whether saying `token` as well would reach the limit of characters."""
        if self.steps == 0 or not tokenizer.is_text(token):
            return False
        return len(tokenizer.decode([*self.said, token])) >= MAX_CHARACTERS

    def text(self, tokenizer: Tokenizer) -> Piece:
        """What it says, in words."""
        ids = tuple(token for token in self.said if tokenizer.is_text(token))
        return Piece(self.number, tokenizer.decode(list(ids)), ids)

    def speech(self, state: SpeechState, like: Tensor) -> SpeechJob:
        """The unit's speech; one without words goes on with those before it. `like` is any hidden state."""
        if self.job is None:
            self.job = SpeechJob(
                state,
                self.said,
                torch.stack(self.hidden) if self.hidden else like.new_zeros(0, len(like)),
                may_be_short=state.length == 0 or self.turn_ended,
                ends_turn=self.turn_ended,
                temperature=self.settings.tts_temperature,
                generator=self.generator or state.generator,
            )
        return self.job
