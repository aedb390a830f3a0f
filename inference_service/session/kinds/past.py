"""The past units of a duplex context, from which words that the user has not heard can be removed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.contract import Reason
from inference_service.device.rows import Rows
from inference_service.interface.engine import Failure

MOST_FED_AGAIN = 8
"""Limit of units that may be heard again; only for these is the input kept. Playback lags by a
second or two.
"""


@dataclass
class PastUnit:
    """A unit that is in the context."""

    number: int
    length: int
    """Entries of its input."""
    input: Rows | None
    """Rows to feed again; None for a unit that lies too far back."""
    steps: int
    """Decided tokens that were fed."""
    samples: int
    """Samples of its sound."""
    closing: list[int]
    """Ids after its tokens."""
    was_open: bool
    """Whether a turn was open before it."""
    decided: NDArray[np.int32] | None
    """The ids decided before the unit; None for a unit that lies too far back."""


@dataclass(frozen=True)
class RestorePoint:
    """The place from which the context changes, and how."""

    index: int
    """The first unit that changes; its input stays in the context."""
    closing: list[int]
    """The ids that close this unit from now on."""
    again: list[PastUnit]
    """The units after it, which are fed again as silent units."""
    units: int
    """Units that lose words."""


class Past:
    """The units that a context holds, oldest first."""

    def __init__(self, turn_eos: int, silence: Sequence[int]) -> None:
        """Create an empty past; `silence` closes a unit that listens, after `turn_eos` where that ends a
        turn.
        """
        self._turn_eos = turn_eos
        self.silence = list(silence)
        self._units: list[PastUnit] = []
        self._dropped_to = 0

    def add(self, unit: PastUnit) -> None:
        """Add a closed unit."""
        if unit.input is not None and unit.input.media is not None:
            # The embeddings are a view of those of all sessions in that tick, so a copy frees the others.
            made = unit.input.media.clone()
            unit.input = Rows(unit.input.ids, unit.input.is_media, made, unit.input.names)
        self._units.append(unit)
        if len(self._units) > MOST_FED_AGAIN:
            self._units[-1 - MOST_FED_AGAIN].input = None
        if len(self._units) > MOST_FED_AGAIN + 1:
            self._units[-2 - MOST_FED_AGAIN].decided = None

    def drop(self, count: int) -> None:
        """Drop the oldest units, as the window did."""
        if count:
            self._dropped_to = self._units[count - 1].number
            del self._units[:count]

    def way_back(self, unit: int, heard_samples: int | None) -> RestorePoint | Failure | None:
        """Return the restore point that removes all words after sample `heard_samples` of `unit`.

        A `heard_samples` of None is the end of the unit. The result is None if there are no such words, and a
        failure if the context can no longer be changed there.

        The first unit with such words keeps its heard part in the context, and is closed like a forced
        listen. Later units are fed again in order.
        """
        if unit <= self._dropped_to:
            return _lost(unit, "the window has dropped it")
        begin = next((i for i, past in enumerate(self._units) if past.number >= unit), len(self._units))
        if begin < len(self._units) and self._units[begin].number == unit:
            samples = self._units[begin].samples
            begin += heard_samples is None or heard_samples >= samples
        affected = self._units[begin:]
        is_open = bool(affected) and affected[0].was_open
        for i, past in enumerate(affected):
            closing = [self._turn_eos, *self.silence] if is_open else self.silence
            if past.steps or past.closing != closing:
                again = affected[i + 1 :]
                if past.decided is None or any(later.input is None for later in again):
                    return _lost(unit, f"it lies more than {MOST_FED_AGAIN} units back")
                spoken = sum(later.steps > 0 for later in affected[i:])
                return RestorePoint(begin + i, closing, again, spoken)
            is_open = False
        return None

    def go_back(self, way: RestorePoint) -> PastUnit:
        """Change the past by a restore point; return the first unit that changed."""
        first = self._units[way.index]
        first.steps, first.samples, first.closing = 0, 0, way.closing
        for past in way.again:
            past.steps, past.samples, past.closing = 0, 0, self.silence
            past.was_open, past.decided = False, first.decided
        return first


def _lost(unit: int, why: str) -> Failure:
    return Failure(Reason.PARAMS_INVALID, f"unit: cannot rewind to unit {unit}: {why}.", "unit")
