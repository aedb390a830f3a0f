"""The running unit of a conversation, and the output of its frames so far."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from inference_service.families.moshi.monologue import Written
from inference_service.interface.engine import Piece
from inference_service.interface.setups import DuplexSettings
from inference_service.session.base.session import Run

Heard = list[Tensor]
"""The frames of a unit, float32 [samples] each, at the codec's rate."""


@dataclass
class FrameRun(Run[Heard]):
    """The running unit. Text and sound are sent together after its last frame."""

    settings: DuplexSettings
    frames: int = 0
    """Frames that have been heard."""
    samples: int = 0
    """Samples of the unit's sound."""
    text: str = ""
    ids: list[int] = field(default_factory=list)
    sound: list[NDArray[np.float32]] = field(default_factory=list)
    says: bool = False
    """Whether the model was in a turn in any of its frames."""
    ends_turn: bool = False

    @property
    def has_more(self) -> bool:
        """Whether any of its frames has not been heard."""
        return self.unit.input is not None and self.frames < len(self.unit.input)

    def say(self, written: Written, pcm: NDArray[np.float32] | None) -> None:
        """Add a frame of a turn: its text, and its sound [samples] if there is a voice."""
        self.says, self.ends_turn = True, written.ends_turn
        self.text += written.text
        self.ids += written.ids
        if pcm is not None:
            self.samples += len(pcm)
            self.sound.append(pcm)

    def pieces(self) -> Iterator[Piece]:
        """Yield the text of the unit if there is any, then its sound if there is any."""
        if self.text:
            yield Piece(self.number, self.text, tuple(self.ids))
        if self.sound:
            yield Piece(
                self.number, audio=self.sound[0] if len(self.sound) == 1 else np.concatenate(self.sound)
            )
