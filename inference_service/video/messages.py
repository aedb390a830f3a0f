"""Messages between the worker and its decoding process."""

import math
from dataclasses import dataclass

MAX_SIDE = 4096
MAX_RATE = 240
"""Limit of frames a second."""


@dataclass(frozen=True)
class Order:
    """The request to decode one video."""

    most_s: float
    """Limit of its duration in seconds."""
    most_pixels: int
    """Limit of pixels of a returned picture."""
    stack_frames: int = 1
    hears: bool = False
    """Whether its sound is wanted."""


@dataclass(frozen=True)
class Header:
    """The properties of a video."""

    frames: int
    rate: float
    """Frames a second."""
    width: int
    height: int
    samples: int
    """Samples of its sound at 16 kHz; 0 without sound."""

    def check(self, order: Order) -> None:
        """Raise `ValueError` for values that no video within `order` has."""
        numbers = (self.frames, self.width, self.height, self.samples)
        if not all(isinstance(it, int) for it in numbers) or not isinstance(self.rate, float):
            raise ValueError("numbers of another type")
        if not (0 < self.rate <= MAX_RATE and math.isfinite(self.rate)):
            raise ValueError(f"{self.rate} frames a second")
        if not (
            0 < self.frames <= self.rate * order.most_s + 1
            and 0 <= self.samples <= 16_000 * order.most_s + 16_000
        ):
            raise ValueError(f"{self.frames} frames, {self.samples} samples")
        if not (0 < self.width <= MAX_SIDE and 0 < self.height <= MAX_SIDE):
            raise ValueError(f"{self.width} x {self.height} pixels")
