"""The frames of a conversation that may be removed, because the user has not heard them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from torch import Tensor

from antiphon.contract import Reason
from inference_service.interface.engine import Failure
from inference_service.models.moshi.model import Codes

MOST: Final = 125
"""Limit of frames that may be removed: ten seconds. Playback lags by a second or two."""


@dataclass
class PastFrame:
    """A frame whose row is in the context."""

    number: int
    """The number of its unit."""
    position: int
    heard: Tensor
    """The user's codes in its row, [codes]."""
    late: Codes
    """The model's codes in its row that belong to the previous frame."""
    begin: int = 0
    """Samples of sound that its unit had sent before this frame."""
    sent: int = 0
    """Samples of this frame that were sent; 0 outside turns."""


@dataclass
class History:
    """The newest frames, oldest first."""

    _frames: deque[PastFrame] = field(default_factory=lambda: deque(maxlen=MOST))
    _dropped_to: int = 0
    """The unit of the newest frame that was dropped from the history."""

    def add(self, frame: PastFrame) -> None:
        """Add a frame whose row is about to be computed."""
        if len(self._frames) == MOST:
            self._dropped_to = self._frames[0].number
        self._frames.append(frame)

    def forget(self) -> None:
        """Remove the newest frame, which has failed."""
        self._frames.pop()

    def sent(self, begin: int, samples: int) -> None:
        """Note the sound of the newest frame that was sent."""
        self._frames[-1].begin, self._frames[-1].sent = begin, samples

    def take_back(self, unit: int, heard_samples: int | None) -> tuple[list[PastFrame], int] | Failure:
        """Return all frames after `heard_samples` of `unit`, and the number of units that lose sound.

        A frame that was heard in part stays. Returns a `Failure` for units whose frames are no longer in the
        history.
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
        """Note that these frames are silent now; `late` are codes of silence."""
        for frame in frames:
            frame.sent = frame.begin = 0
        for frame in frames[1:]:
            frame.late = late


def _is_unheard(frame: PastFrame, unit: int, heard_samples: int | None) -> bool:
    if frame.number != unit:
        return frame.number > unit
    return heard_samples is not None and frame.sent > 0 and frame.begin >= heard_samples
