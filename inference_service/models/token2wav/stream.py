"""One stream of speech: its caches, and the tokens that wait for later ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from inference_service.models.token2wav.config import LOOK_AHEAD, SILENT_TOKEN, TOKENS_PER_SECOND
from inference_service.models.token2wav.flow import FlowState

_SHORTEST = 8
"""Least tokens of a chunk: fewer are too short for a cross-fade."""
_LONGEST = TOKENS_PER_SECOND + LOOK_AHEAD


class VocoderState(Protocol):
    """A vocoder's state of one stream."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def tensors(self) -> list[Tensor]: ...

    def holding(self, tensors: Sequence[Tensor]) -> Any: ...


class Vocoder(Protocol):
    """Turns mel frames into samples; all its states are of one kind."""

    def initial_state(self) -> VocoderState:
        """Return the state of a new stream."""

    def advance(self, mel: Tensor, states: list[Any], *, is_last: bool) -> tuple[Tensor, list[Any]]:
        """Advance streams of one shape by frames [batch, 80, n]; return samples [batch, ...] and
        new states.
        """

    def noise_begins(self, states: list[Any]) -> Tensor:
        """Return the start of each stream's noise, int64 [batch] on the device."""

    def advance_from(
        self, begins: Tensor, mel: Tensor, states: list[Any], *, is_last: bool
    ) -> tuple[Tensor, list[Any]]:
        """Advance as `advance` does, with noise that begins at rows `begins`, int64 [batch]."""

    def moved(self, state: Any, samples: int, tensors: Sequence[Tensor]) -> Any:
        """Return the state after a chunk of `samples` samples that left these tensors."""


@dataclass(frozen=True)
class VoiceCache:
    """The caches of a voice prompt, with which every turn in that voice begins; streams may share them."""

    flow: FlowState

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return _bytes(self.flow.tensors)


@dataclass(frozen=True)
class VocoderPass:
    """Tokens for one pass: those to speak and, unless they are the last of a turn, three more."""

    tokens: list[int]
    is_last: bool


@dataclass
class StreamState:
    """All state of one stream; it belongs to the owner of the session."""

    voice: VoiceCache
    flow: FlowState
    vocoder: VocoderState
    silent: VocoderState
    """The vocoder's state before a turn."""
    pending: list[int] = field(default_factory=lambda: [SILENT_TOKEN] * LOOK_AHEAD)
    has_begun: bool = False
    """Whether the turn has any token."""

    @property
    def nbytes(self) -> int:
        """Bytes of its own tensors, without those of the voice."""
        own = [] if self.flow is self.voice.flow else self.flow.tensors
        return _bytes(own + self.vocoder.tensors)

    def add(self, codes: list[int]) -> None:
        """Add speech tokens to the turn."""
        self.pending = self.pending + codes
        self.has_begun |= bool(codes)

    def reset(self) -> None:
        """Begin a turn without any state of the previous one."""
        self.flow = self.voice.flow
        self.vocoder = self.silent
        self.pending = [SILENT_TOKEN] * LOOK_AHEAD
        self.has_begun = False

    def mark(self) -> Callable[[], None]:
        """Return a function that restores the current state."""
        before = dict(vars(self))
        return lambda: vars(self).update(before)

    def next_chunk(self, *, is_last: bool) -> VocoderPass | None:
        """Take the next chunk; None means that no chunk is ready before more tokens come.

        At the end of a turn (`is_last`), the last chunk holds all remaining tokens; a turn without words has
        none.
        """
        pending = self.pending
        if len(pending) >= _SHORTEST:
            tokens = pending[:_LONGEST]
            self.pending = pending[len(tokens) - LOOK_AHEAD :]
            return VocoderPass(tokens, is_last=False)
        if not is_last or not pending or not self.has_begun:
            return None
        self.pending = []
        return VocoderPass(pending, is_last=True)


@dataclass(frozen=True)
class StreamCodes:
    """New speech tokens of a stream; `ends_turn` says that no more follow before it is reset."""

    state: StreamState
    codes: list[int]
    ends_turn: bool = False


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
