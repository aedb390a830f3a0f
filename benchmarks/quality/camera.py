"""A simulated camera: newly drawn pictures for one session, and the scene of the newest picture."""

import io
import random

import numpy as np

from antiphon_training.corpus.pictures import (
    NOTHING,
    SCENES,
    Scene,
    draw_picture,
)

SIZES = ((640, 480), (640, 480), (640, 360), (480, 640))
_NO_CAMERA = 0.1
_NOTHING_SHOWN = 0.08


class Camera:
    """A camera with one picture per unit, with up to three, or with pictures in half of the units.

    One camera in ten is off. Half of the cameras are static: they repeat one picture of each scene.
    """

    def __init__(self, rng: random.Random) -> None:
        self.frames: list[tuple[bytes, ...]] = []
        self.seen: Scene = NOTHING
        self._rng = rng
        self._draw = np.random.default_rng(rng.randrange(1 << 30))
        kind = rng.random()
        self._share = 0.0 if kind < _NO_CAMERA else 0.5 if kind < 0.3 else 1.0
        self._most = 3 if kind > 0.8 else 1
        self._stands_still = rng.random() < 0.5
        self._size = rng.choice(SIZES)
        self.scene: Scene = NOTHING
        self._last = b""
        self.change()

    def change(self) -> None:
        """Change the scene."""
        rng = self._rng
        self.scene = NOTHING if rng.random() < _NOTHING_SHOWN else rng.choice(SCENES[1:])
        self._last = b""

    def roll(self, units: int) -> None:
        """Add the pictures of units up to a total of `units`."""
        while len(self.frames) < units:
            count = self._rng.randint(1, self._most) if self._rng.random() < self._share else 0
            self.frames.append(tuple(self._shoot() for _ in range(count)))

    def _shoot(self) -> bytes:
        if not self._last or not self._stands_still:
            file = io.BytesIO()
            image = draw_picture(self._draw, self.scene, self._size)
            image.save(file, "JPEG", quality=self._rng.randint(40, 95))
            self._last = file.getvalue()
        self.seen = self.scene
        return self._last
