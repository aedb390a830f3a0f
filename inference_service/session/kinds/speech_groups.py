"""The voice of a chat: an answer is spoken in groups of words, like the units of a duplex turn."""

from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.speech import SpeechJob, SpeechState
from inference_service.models.pacing import fits, is_wide
from inference_service.session.kinds.components import MouthState

LONGEST = 64
"""Limit of tokens that are spoken at once, without the end of the turn; a longer word is cut."""


@dataclass
class _Words:
    """Words, or a part of one: text, and tokens with their hidden states, each [hidden]."""

    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)

    def add(self, token: int, hidden: Tensor) -> None:
        self.tokens.append(token)
        self.hidden.append(hidden)

    def absorb(self, words: "_Words") -> None:
        self.texts += words.texts
        self.tokens += words.tokens
        self.hidden += words.hidden


@dataclass
class SpeechGroups:
    """The spoken and the unspoken words of a session's running turn.

    A group is complete once the next word is complete and does not fit into it.
    """

    speech: SpeechState
    turn_end: int
    """The token that ends a turn for the speech head."""
    temperature: float
    mouth: MouthState | None = None
    noise: Noise | None = None
    """The turn's own source of randomness, if it does not use the session's."""
    job: SpeechJob | None = None
    """The speech job of the running group."""
    _word: _Words = field(default_factory=_Words)
    _group: _Words = field(default_factory=_Words)
    _ready: deque[SpeechJob] = field(default_factory=deque)

    def add(self, token: int, text: str, hidden: Tensor) -> None:
        """Append the next token of the answer, its text and its hidden state [hidden]."""
        if text[:1].isspace() or (text and is_wide(text[0])):
            self._end_word()
        self._word.texts = ["".join([*self._word.texts, text.strip()])]
        self._word.add(token, hidden)
        if len(self._word.tokens) == LONGEST:
            self._end_word()

    def end(self, hidden: Tensor) -> None:
        """Complete the answer; `hidden` is the state of the token that ends the turn."""
        self._end_word()
        if self._group.tokens:
            self._group.add(self.turn_end, hidden)
            self._close_group(ends=True)

    def _end_word(self) -> None:
        word, self._word = self._word, _Words()
        if not word.tokens:
            return
        if self._group.tokens and not self._has_room_for(word):
            self._close_group()
        self._group.absorb(word)

    def _has_room_for(self, word: _Words) -> bool:
        if len(self._group.tokens) + len(word.tokens) > LONGEST:
            return False
        return fits(self._group.texts, "".join(word.texts))

    def _close_group(self, *, ends: bool = False) -> None:
        group, self._group = self._group, _Words()
        self._ready.append(
            SpeechJob(
                self.speech,
                group.tokens,
                torch.stack(group.hidden),
                may_be_short=ends,
                ends_turn=ends,
                temperature=self.temperature,
                noise=self.noise or self.speech.noise,
            )
        )

    def next(self) -> bool:
        """Start speaking the next complete group; return False if there is none."""
        self.job = self._ready.popleft() if self._ready else None
        if self.job is not None and self.speech.length == 0:
            self.job.may_be_short = True
        return self.job is not None

    def drop_turn(self) -> None:
        """Drop the turn, and reset speech head and vocoder."""
        self.job = None
        self._ready.clear()
        self._word, self._group = _Words(), _Words()
        self.speech.end_turn()
        if self.mouth is not None:
            self.mouth.reset()
