"""The inner monologue of a conversation: a text token in every frame, most of them padding."""

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inference_service.models.moshi.model import SilentTokens
from inference_service.session.kinds.text import Detokenizer

HOLD: Final = 12
"""Frames without a word after which a turn is over: about a second."""
_RECENT: Final = 512
"""Tokens to which the repetition penalty applies."""


@dataclass(frozen=True)
class Written:
    """The text of one frame."""

    text: str = ""
    ids: tuple[int, ...] = ()
    """Tokens of the text; those of an incomplete character come with its rest."""
    in_turn: bool = False
    """Whether the frame belongs to a turn of the model, so that its sound is sent."""
    ends_turn: bool = False


class Monologue:
    """Turns tokens into text and turns: a word opens a turn, and `HOLD` frames without one end it."""

    def __init__(self, words: SilentTokens, text: Detokenizer) -> None:
        self.words: Final = words
        self._text = text
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._left = 0
        """Frames without a word until the open turn ends; 0 outside turns."""
        self._unshown: list[int] = []

    @property
    def recent(self) -> NDArray[np.int32]:
        """Return the newest tokens that are not padding, oldest first."""
        return np.array(self._recent, np.int32)

    def drawn(self, token: int) -> None:
        """Note a token that was drawn, whether or not its frame will be sent."""
        if token not in self.words.silent:
            self._recent.append(token)

    def write(self, token: int) -> Written:
        """Take the token of a frame that is sent."""
        was_open, text = self._left > 0, ""
        if token in self.words.silent:
            self._left = max(0, self._left - 1)
        else:
            self._left = HOLD
            self._unshown.append(token)
            text = self._text.add(token)
        if not was_open and not self._left:
            return Written()
        ends_turn = was_open and not self._left
        if ends_turn:
            text += self._text.flush()
        ids: tuple[int, ...] = ()
        if text:
            ids, self._unshown = tuple(self._unshown), []
        return Written(text, ids, in_turn=True, ends_turn=ends_turn)

    def break_off(self) -> None:
        """Drop the open turn with its text that was not sent."""
        self._text.flush()
        self._unshown = []
        self._left = 0

    def forget_recent(self) -> None:
        """Clear the history of the repetition penalty."""
        self._recent.clear()
