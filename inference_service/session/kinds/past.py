"""The past units of a duplex context, so that words that nobody heard can be taken back."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.contract import Reason
from inference_service.device.rows import Rows
from inference_service.interface.engine import Failure

REPLAYED = 8
"""Units that may be heard again at most: of so many the input is kept. A listener is a second or two
behind."""


@dataclass
class PastUnit:
    """A unit that is in the context."""

    number: int
    length: int
    """Entries of its input."""
    input: Rows | None
    """For hearing it again; None of one that lies too far back."""
    steps: int
    """Decided tokens that were fed."""
    samples: int
    """Of its sound."""
    closing: list[int]
    """What was behind its tokens."""
    was_open: bool
    """Whether a turn was open before it."""
    decided: NDArray[np.int32] | None
    """The ids decided before it; None of one that lies too far back."""


@dataclass(frozen=True)
class RestorePoint:
    """The place from which the context changes, and how."""

    index: int
    """The first unit that changes, which stays heard."""
    closing: list[int]
    """What ends it now."""
    again: list[PastUnit]
    """Those behind it, which are heard again and were silent."""
    units: int
    """Units of which something is taken back."""


class Past:
    """The units that a context holds, oldest first."""

    def __init__(self, turn_eos: int, silence: Sequence[int]) -> None:
        """`silence` ends a unit that listens; `turn_eos` stands before it where that ends a turn."""
        self._turn_eos = turn_eos
        self.silence = list(silence)
        self._units: list[PastUnit] = []
        self._dropped_to = 0

    def add(self, unit: PastUnit) -> None:
        """Add a closed unit."""
        if unit.input is not None and unit.input.made is not None:
            # What was made is a part of what was made for everybody in that tick.
            made = unit.input.made.clone()
            unit.input = Rows(unit.input.ids, unit.input.is_made, made, unit.input.names)
        self._units.append(unit)
        if len(self._units) > REPLAYED:
            self._units[-1 - REPLAYED].input = None
        if len(self._units) > REPLAYED + 1:
            self._units[-2 - REPLAYED].decided = None

    def drop(self, count: int) -> None:
        """Drop the oldest units, as the window did."""
        if count:
            self._dropped_to = self._units[count - 1].number
            del self._units[:count]

    def way_back(self, unit: int, heard_samples: int | None) -> RestorePoint | Failure | None:
        """Return what is to be done so that nothing is left of what was said after that; None if nothing is.

        The first unit with such words stays in the context as far as it was heard, and is closed as a forced
        listen closes it. Those behind it are heard again in their order.
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
                    return _lost(unit, f"it lies more than {REPLAYED} units back")
                spoken = sum(later.steps > 0 for later in affected[i:])
                return RestorePoint(begin + i, closing, again, spoken)
            is_open = False
        return None

    def go_back(self, way: RestorePoint) -> PastUnit:
        """Change the past; return the first unit that changed."""
        first = self._units[way.index]
        first.steps, first.samples, first.closing = 0, 0, way.closing
        for past in way.again:
            past.steps, past.samples, past.closing = 0, 0, self.silence
            past.was_open, past.decided = False, first.decided
        return first


def _lost(unit: int, why: str) -> Failure:
    return Failure(Reason.PARAMS_INVALID, f"unit: nothing can be taken back to unit {unit}: {why}.", "unit")
