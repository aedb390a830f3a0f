"""From the input of a unit to what the engine works on: on the media thread, beside the engine's own."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from inference_service.engine.api import Content, UnitInput
from inference_service.media.image import decode_frame
from inference_service.media.mel import SAMPLE_RATE, MelStream

Prepared = TypeVar("Prepared")


class Intake(ABC, Generic[Prepared]):
    """Prepares the units of one session, in their order. Nothing else of the session is touched here."""

    is_quick: ClassVar[bool] = True
    """Whether its units are small, and soon due: they never wait for one that is not."""

    @abstractmethod
    def prepare(self, content: Content) -> Prepared:
        """What the engine is given. Raises `UnitRefused` for input that cannot be used."""


@dataclass(frozen=True)
class Perceived:
    """One second: log-mel [100, 80], and pictures, uint8 [side, side, 3], oldest first."""

    mel: Tensor
    pictures: tuple[Tensor, ...] = ()


class DuplexIntake(Intake[Perceived]):
    """Hears one second after another, and sees pictures of `side` pixels; `side` 0 sees none."""

    def __init__(self, side: int) -> None:
        self._side = side
        self._mel = MelStream()

    def prepare(self, content: Content) -> Perceived:
        if not isinstance(content, UnitInput):
            raise TypeError(f"A duplex session takes UnitInput, not {type(content).__name__}.")
        if len(content.pcm) > SAMPLE_RATE:
            raise ValueError(f"A unit has at most {SAMPLE_RATE} samples, not {len(content.pcm)}.")
        pictures = self._look(content.frames)
        pcm = np.pad(content.pcm, (0, SAMPLE_RATE - len(content.pcm)))
        return Perceived(torch.from_numpy(self._mel.hear(pcm)), pictures)

    def _look(self, frames: Sequence[bytes]) -> tuple[Tensor, ...]:
        if frames and not self._side:
            raise ValueError("This model has no vision encoder.")
        return tuple(
            torch.from_numpy(decode_frame(data, field=f"duplex.frames[{i}]", side=self._side))
            for i, data in enumerate(frames)
        )
