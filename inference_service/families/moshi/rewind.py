"""The frames of a conversation that may be taken back, because the user has not heard them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from torch import Tensor

from antiphon.contract import Reason
from inference_service.interface.engine import Failure
from inference_service.models.moshi.model import Codes

MOST: Final = 125
"""Frames that may be taken back: ten seconds. A listener is a second or two behind."""


@dataclass
class PastFrame:
    """A frame whose row is in the context."""

    number: int
    """Of its unit."""
    position: int
    heard: Tensor
    """The user's codes in its row, [codes]."""
    late: Codes
    """The model's codes in its row that belong to the frame before."""
    begin: int = 0
    """Samples of sound that its unit had given out before it."""
    sent: int = 0
    """Samples of it that were given out; none outside turns."""


@dataclass
class History:
    """The newest frames, oldest first."""

    _frames: deque[PastFrame] = field(default_factory=lambda: deque(maxlen=MOST))
    _dropped_to: int = 0
    """The unit of the newest frame that is too old."""

    def add(self, frame: PastFrame) -> None:
        """A frame's row is about to be computed."""
        if len(self._frames) == MOST:
            self._dropped_to = self._frames[0].number
        self._frames.append(frame)

    def forget(self) -> None:
        """The newest frame has come to nothing."""
        self._frames.pop()

    def sent(self, begin: int, samples: int) -> None:
        """So much sound of the newest frame was given out."""
        self._frames[-1].begin, self._frames[-1].sent = begin, samples

    def take_back(self, unit: int, heard_samples: int | None) -> tuple[list[PastFrame], int] | Failure:
        """Return all frames behind so many samples of `unit`, and of how many units something is taken back.

        A frame that was heard in part stays. Fails for units of which frames are too old to be taken back.
        """
        if self._dropped_to > unit or (self._dropped_to == unit and heard_samples is not None):
            why = f"it lies more than {MOST} frames back"
            return Failure(
                Reason.PARAMS_INVALID, f"unit: nothing can be taken back to unit {unit}: {why}.", "unit"
            )
        frames = list(self._frames)
        first = next((i for i, it in enumerate(frames) if _is_unheard(it, unit, heard_samples)), len(frames))
        taken = frames[first:]
        return taken, len({it.number for it in taken if it.sent})

    def silenced(self, frames: Sequence[PastFrame], late: Codes) -> None:
        """Nothing was said in these frames; `late` are codes of silence."""
        for frame in frames:
            frame.sent = frame.begin = 0
        for frame in frames[1:]:
            frame.late = late


def _is_unheard(frame: PastFrame, unit: int, heard_samples: int | None) -> bool:
    if frame.number != unit:
        return frame.number > unit
    return heard_samples is not None and frame.sent > 0 and frame.begin >= heard_samples
