"""VAD by loudness alone, relative to the usual level of a session. Needs only numpy."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ws_adapter.protocol.wire.codec import Samples

LOUD: Final = 0.02
"""The lowest root mean square of a window that may be speech: -34 dBFS."""

ABOVE_USUAL: Final = 4.0
"""The lowest ratio of the level of speech to the usual level, 12 dB."""

_SETTLES: Final = 0.0128
"""The smoothing factor of the usual level per window: its time constant is 2.5 s."""


class Energy:
    """A scorer by loudness. A window at the lowest level of speech gets a score of 0.5."""

    name: Final = "energy"

    class Memory:
        """The usual level of one session: the mean level of windows without speech."""

        def __init__(self) -> None:
            self.usual = LOUD / ABOVE_USUAL

    def begin(self) -> Memory:
        return self.Memory()

    def score(self, memories: Sequence[Memory], windows: Sequence[Samples]) -> list[Samples]:
        return [_score(memory, given) for memory, given in zip(memories, windows, strict=True)]


def _score(memory: Energy.Memory, windows: Samples) -> Samples:
    scores = []
    for level in np.sqrt(np.einsum("ij,ij->i", windows, windows) / windows.shape[1]).tolist():
        bar = max(LOUD, ABOVE_USUAL * memory.usual)
        if level < bar:
            memory.usual += _SETTLES * (level - memory.usual)
        scores.append(level / (level + bar))
    return np.array(scores, np.float32)
