"""Hears whether the user speaks: by loudness alone, over what is usual for this session."""

from typing import Final

import numpy as np

from ws_adapter.protocol.live.sound import INPUT_RATE_HZ
from ws_adapter.protocol.wire.codec import Samples

BLOCK: Final = INPUT_RATE_HZ // 20
"""Samples of a block, 50 ms."""

LOUD: Final = 0.02
"""What a block has at least, root mean square, that may be speech: -34 dBFS."""

ABOVE_USUAL: Final = 4.0
"""And so many times what is usual, 12 dB."""

SPEECH: Final = 5
"""So many loud blocks among the last `_RECENT` are speech: a click or a cough is shorter."""

_RECENT: Final = 8
_SETTLES: Final = 0.02
"""How fast what is usual follows, for each block: its time constant is 2.5 s."""


class Gate:
    """Takes all input of a session, float32 at 16 kHz."""

    def __init__(self) -> None:
        self._rest = np.zeros(0, np.float32)
        self._usual = LOUD / ABOVE_USUAL
        self._recent = [False] * _RECENT

    def hears_speech(self, samples: Samples) -> bool:
        """Whether the user speaks at the end of these samples, or has spoken in them."""
        joined = np.concatenate([self._rest, samples]) if self._rest.size else samples
        whole = joined.size // BLOCK * BLOCK
        self._rest = joined[whole:].copy()
        heard = False
        for level in np.sqrt(np.mean(np.square(joined[:whole].reshape(-1, BLOCK)), axis=1)).tolist():
            is_loud = level > max(LOUD, ABOVE_USUAL * self._usual)
            self._recent = [*self._recent[1:], is_loud]
            if not is_loud:
                self._usual += _SETTLES * (level - self._usual)
            heard = heard or sum(self._recent) >= SPEECH
        return heard
