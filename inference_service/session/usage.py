"""Token counts of each lease, which the dispatcher that issued the lease reads with GetInfo."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from inference_service.interface.engine import (
    Done,
    Piece,
    Prefilled,
    UnitUsage,
)
from inference_service.session.machine import Answer

ENDED_PER_SLOT: Final = 4
"""Ended sessions that are still reported, for each slot: a dispatcher asks every second."""


@dataclass
class LeaseUsage:
    """Token counts of the session with the lease of this epoch."""

    epoch: int
    input_tokens: int = 0
    output_tokens: int = 0
    _open: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Input and output tokens of the running units, as far as they are known."""

    def prompted(self, tokens: int) -> None:
        """Count the tokens of the prompt, which is in the context."""
        self.input_tokens += tokens

    def count(self, answer: Answer) -> None:
        """Count an answer on its way to the caller."""
        match answer:
            case Piece():
                given, said = self._open.get(answer.unit, (0, 0))
                self._note(answer.unit, given, said + max(1, len(answer.token_ids)))
            case Prefilled():
                self._note(answer.unit, _input(answer.usage), 0)
            case Done():
                self._note(answer.unit, _input(answer.usage), _output(answer.usage))
                del self._open[answer.unit]

    def _note(self, unit: int, given: int, said: int) -> None:
        before, spoken = self._open.get(unit, (0, 0))
        self._open[unit] = given, said
        self.input_tokens += given - before
        self.output_tokens += said - spoken


class UsageTable:
    """Token counts of all sessions with a lease: the running ones, and the last ended ones."""

    def __init__(self, slots: int) -> None:
        self._running: dict[int, LeaseUsage] = {}
        self._ended: deque[LeaseUsage] = deque(maxlen=max(1, slots * ENDED_PER_SLOT))

    def begin(self, epoch: int) -> LeaseUsage:
        """Start counting for a new session."""
        usage = self._running[epoch] = LeaseUsage(epoch)
        return usage

    def end(self, usage: LeaseUsage) -> None:
        """Note that the session is over, and its slot clean."""
        if self._running.pop(usage.epoch, None) is not None:
            self._ended.append(usage)

    def all(self) -> list[LeaseUsage]:
        """Return the token counts, oldest first."""
        return [*self._ended, *self._running.values()]


def _input(usage: UnitUsage) -> int:
    return usage.input_text_tokens + usage.input_audio_tokens + usage.input_vision_tokens


def _output(usage: UnitUsage) -> int:
    return usage.output_text_tokens + usage.output_audio_tokens
