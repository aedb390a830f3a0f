"""A speech detector without a thread, which judges by loudness at once."""

import numpy as np

from ws_adapter.detection.energy import Energy
from ws_adapter.protocol.core.speech import WINDOW
from ws_adapter.protocol.wire.codec import Samples


class Hearing:
    """A speech detector that scores each `Detect` for `Machine.detected`."""

    def __init__(self) -> None:
        self._scorer = Energy()
        self._memory = self._scorer.begin()
        self._rest = np.zeros(0, np.float32)

    def scores(self, samples: Samples) -> list[float]:
        """Return the score of each window that is now complete."""
        sound = np.concatenate([self._rest, samples])
        count = sound.size // WINDOW
        self._rest = sound[count * WINDOW :]
        if not count:
            return []
        (found,) = self._scorer.score([self._memory], [sound[: count * WINDOW].reshape(count, WINDOW)])
        scores: list[float] = found.tolist()
        return scores

    def restart(self) -> None:
        """Continue with another detector, which lacks the audio of the incomplete window."""
        self._rest = np.zeros(0, np.float32)
