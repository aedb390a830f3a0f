"""Captured regions for whole seconds of streams in one voice; other chunks are computed directly.

A stream's second has one of a few shapes: the caches depend on the age of the turn, and stop growing after
two seconds. The results are the same as without regions.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from inference_service.device.graph import Region, graph_pool
from inference_service.models.token2wav.config import LOOK_AHEAD, TOKENS_PER_SECOND
from inference_service.models.token2wav.flow import Flow, FlowState
from inference_service.models.token2wav.stream import Vocoder

BATCHES: Final = (2, 1)
"""Numbers of streams in a captured pass, largest first; more streams take several passes, without padding."""
COPIES: Final = 4
"""Copies of a stream's caches in a pass: the inputs, the batch, the batch with new entries, and the cut
result.
"""


class CapturedSeconds:
    """Captured passes of flow and vocoder."""

    def __init__(self, flow: Flow, vocoder: Vocoder, voice: FlowState) -> None:
        """Capture streams in this voice. Must be called in inference mode."""
        device = flow.noise.device
        pool = graph_pool(device)
        self._flow, self._vocoder, self._voice = flow, vocoder, voice
        self._flowing = Region(device, self._flow_pass, pool)
        self._vocoding = Region(device, self._vocoder_pass, pool)
        self._like: dict[tuple[int, ...], Any] = {}
        tokens = torch.zeros(1, TOKENS_PER_SECOND + LOOK_AHEAD, dtype=torch.int64, device=device)
        states, mel = _ages(voice, lambda state: flow.advance(tokens, [state], is_last=False))
        frames = mel.transpose(1, 2)
        sounds, _ = _ages(
            vocoder.initial_state(), lambda state: vocoder.advance(frames, [state], is_last=False)
        )
        for count in BATCHES:
            for state in reversed(states):
                self._flowing.prepare(*self._flow_key(tokens.expand(count, -1), [state] * count))
            for sound in reversed(sounds):
                given = frames.expand(count, -1, -1), [sound] * count
                self._vocoding.prepare(*self._vocoder_key(vocoder.noise_begins(given[1]), *given))

    def flow(self, tokens: Tensor, states: list[FlowState]) -> tuple[Tensor, list[FlowState]]:
        """Advance as `Flow.advance` does, by a chunk that is not the last one."""
        name, given = self._flow_key(tokens, states)
        if not self._flowing.knows(name, given):
            return self._flow.advance(tokens, states, is_last=False)
        mel, *kept = self._flowing(name, *given)
        parts = _split(kept, len(states))
        return mel, [state.holding([state.speaker, *part]) for state, part in zip(states, parts, strict=True)]

    def vocode(self, mel: Tensor, states: list[Any]) -> tuple[Tensor, list[Any]]:
        """Advance as `Vocoder.advance` does, by a chunk that is not the last one."""
        begins = self._vocoder.noise_begins(states)
        name, given = self._vocoder_key(begins, mel, states)
        if not self._vocoding.knows(name, given):
            return self._vocoder.advance_from(begins, mel, states, is_last=False)
        wave, *kept = self._vocoding(name, *given)
        return wave, [
            self._vocoder.moved(state, wave.shape[1], part)
            for state, part in zip(states, _split(kept, len(states)), strict=True)
        ]

    def _flow_key(self, tokens: Tensor, states: list[FlowState]) -> tuple[Any, list[Tensor]]:
        return states[0].prompt_frames, [tokens, *(it for state in states for it in state.tensors)]

    def _flow_pass(self, prompt_frames: int, tokens: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
        assert prompt_frames == self._voice.prompt_frames
        states = [self._voice.holding(part) for part in _split(kept, len(tokens))]
        mel, after = self._flow.advance(tokens, states, is_last=False)
        return mel, *(it for state in after for it in state.tensors[1:])

    def _vocoder_key(self, begins: Tensor, mel: Tensor, states: list[Any]) -> tuple[Any, list[Tensor]]:
        shape = states[0].shape
        self._like.setdefault(shape, states[0])
        return shape, [begins, mel, *(it for state in states for it in state.tensors)]

    def _vocoder_pass(
        self, shape: tuple[int, ...], begins: Tensor, mel: Tensor, *kept: Tensor
    ) -> tuple[Tensor, ...]:
        states = [self._like[shape].holding(part) for part in _split(kept, len(mel))]
        wave, after = self._vocoder.advance_from(begins, mel, states, is_last=False)
        return wave, *(it for state in after for it in state.tensors)


def _ages(first: Any, step: Any) -> tuple[list[Any], Tensor]:
    """Return the states of a stream after each second until their shape repeats, and its output."""
    states = [first]
    while True:
        made, (after,) = step(states[-1])
        if after.shape in [state.shape for state in states]:
            return states, made
        states.append(after)


def _split(tensors: Sequence[Tensor], parts: int) -> list[Sequence[Tensor]]:
    """Split tensors into equal parts."""
    size = len(tensors) // parts
    return [tensors[begin : begin + size] for begin in range(0, len(tensors), size)]
