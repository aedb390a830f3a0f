"""The simulated camera of a composed session: the pictures of each unit, and the scene in the newest one."""

import numpy as np
from numpy.typing import NDArray

from antiphon_training.corpus.pictures import (
    NOTHING,
    PictureSet,
    Scene,
    random_scene,
)
from inference_service.media.image import MAX_FRAMES

Pixels = NDArray[np.uint8]


class Camera:
    """The camera of one session, extended unit by unit; the same generator gives the same pictures.

    A session has no camera at all, one picture in every unit, pictures in some units, or bursts of them. The
    camera may start late or stop early. `unfilmed` is the share of sessions without a camera. `seen` is the
    scene in the newest picture, and `NOTHING` before the first.
    """

    def __init__(self, rng: np.random.Generator, album: PictureSet | None, unfilmed: float) -> None:
        self.units: list[list[Pixels]] = []
        self.seen: Scene = NOTHING
        self._rng = rng
        self._album = album
        self._on = 0 if rng.random() < 0.75 else int(rng.integers(1, 12))
        self._off = 10_000 if rng.random() < 0.85 else self._on + int(rng.integers(1, 20))
        self._chance = 1.0 if rng.random() < 0.4 else rng.uniform(0.05, 0.6)
        self._burst = 1 if rng.random() < 0.8 else MAX_FRAMES
        self._restless = rng.choice([0.0, 0.05, 0.15, 0.4])
        self._steady = rng.random() < 0.4
        if album is None or rng.random() < unfilmed:
            self._on = self._off = 0
        self._scene = random_scene(rng)
        self._last: Pixels | None = None

    @property
    def films(self) -> bool:
        """Whether this session has a camera at all."""
        return self._off > 0

    def advance(self, units: int, still: bool = False) -> None:
        """Add pictures until there are `units` units; with `still` the scene does not change meanwhile."""
        while len(self.units) < units:
            number = len(self.units)
            filmed: list[Pixels] = []
            if self._on <= number < self._off and self._rng.random() < self._chance:
                for _ in range(1 if self._rng.random() < 0.5 else self._rng.integers(1, self._burst + 1)):
                    filmed.append(self._film(still))
            self.units.append(filmed)

    def _film(self, still: bool) -> Pixels:
        assert self._album is not None
        rng = self._rng
        changes = not still and rng.random() < self._restless
        if changes:
            self._scene = random_scene(rng)
        if changes or self._last is None or not self._steady:
            self._last = self._album.picture(rng, self._scene)
        self.seen = self._scene
        return self._last
