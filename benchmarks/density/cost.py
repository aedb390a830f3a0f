"""Seconds of each step of a tick on a GPU: a sum of parts that do not overlap.

`tests/inference_service/device/test_launches.py` counts the operators and kernels; `docs/gpu.md` lists them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import torch

from benchmarks.density.card import Assumptions, Card
from benchmarks.density.weights import DTYPE, voice_bytes, weights
from benchmarks.full_size.sizes import FULL
from inference_service.engine.batch.speech import CODES_AT_ONCE
from inference_service.models.token2wav.config import FRAMES_PER_TOKEN, LOOK_AHEAD, TOKENS_PER_SECOND
from inference_service.models.token2wav.model import DEFAULT_STEPS

TICK_LAUNCHES: Final = 43
CODES_LAUNCHES: Final = 60
SOUND_LAUNCHES: Final = 7
LAST_LAUNCHES: Final = 4472
"""Operators of the vocoder for the last second of a turn: half of them are not in a captured region."""
SOUND_KERNELS: Final = 4463
EAR_LAUNCHES: Final = 10
EAR_KERNELS: Final = 468
EAR_ROWS: Final = 52
"""Positions of the ear for a second: half of its frames."""
PATCHES: Final = 1024
"""Patches of a slice of a picture."""
FLOWS: Final = 2
"""Passes per flow step: one with and one without guidance."""


class Span(NamedTuple):
    """One session in a forward: its new rows, and the rows of its context with them."""

    rows: int
    context: int


class Cost(Protocol):
    """Seconds of the steps of a tick."""

    def hear(self, streams: int) -> float:
        """Return the time in which the audio encoder processes a second of each of `streams` streams."""

    def see(self, slices: int) -> float:
        """Return the time in which the vision encoder processes `slices` slices."""

    def forward(self, spans: Sequence[Span]) -> float:
        """Return the time of a forward of the language model and of the sampling after it."""

    def codes(self, spans: Sequence[Span]) -> float:
        """Return the time in which the speech head generates a second of codes for each session."""

    def sound(self, voices: int, *, ends_turn: bool) -> float:
        """Return the time in which the vocoder generates a second of audio for each of `voices` sessions."""


@dataclass(frozen=True)
class CardCost:
    """The cost of MiniCPM-o 4.5 in bfloat16 on a card."""

    card: Card
    assumed: Assumptions = field(default_factory=Assumptions)
    vocoder_dtype: str = "float32"

    def hear(self, streams: int) -> float:
        part = weights()
        read = part.ear * DTYPE.itemsize + streams * part.ear_state_bytes
        return self._seconds(EAR_LAUNCHES, EAR_KERNELS, read, 2 * part.ear * EAR_ROWS * streams)

    def see(self, slices: int) -> float:
        eye = weights().eye
        return self._seconds(self.assumed.eye_launches, 0, eye * DTYPE.itemsize, 2 * eye * PATCHES * slices)

    def forward(self, spans: Sequence[Span]) -> float:
        part, config = weights(), FULL.config.language
        contexts = [max(it.context, self.assumed.least_context) for it in spans]
        read = part.language * DTYPE.itemsize + sum(contexts) * part.row_bytes
        pairs = sum(it.rows * context for it, context in zip(spans, contexts, strict=True))
        attention = 4 * config.num_attention_heads * config.head_dim * config.num_hidden_layers * pairs
        flop = 2 * part.language * sum(it.rows for it in spans) + attention
        kernels = config.num_hidden_layers * self.assumed.layer_kernels
        device = self._seconds(TICK_LAUNCHES, kernels, read, flop)
        return device + len(spans) * self.assumed.session_ms / 1e3

    def codes(self, spans: Sequence[Span]) -> float:
        part, layers = weights(), FULL.config.speech.backbone.num_hidden_layers
        read = part.speech * DTYPE.itemsize + sum(it.context for it in spans) * part.speech_row_bytes
        kernels = layers * self.assumed.layer_kernels + self.assumed.draw_kernels
        flop = 2 * part.speech * sum(it.rows + CODES_AT_ONCE - 1 for it in spans)
        return self._seconds(CODES_LAUNCHES, CODES_AT_ONCE * kernels, CODES_AT_ONCE * read, flop)

    def sound(self, voices: int, *, ends_turn: bool) -> float:
        part, size = weights(), getattr(torch, self.vocoder_dtype).itemsize
        frames = FRAMES_PER_TOKEN * (TOKENS_PER_SECOND + LOOK_AHEAD)
        read = (part.encoder + DEFAULT_STEPS * part.estimator) * size + part.hift * torch.float32.itemsize
        read += voices * voice_bytes(self.vocoder_dtype)
        flow = 2 * frames * (part.encoder + FLOWS * DEFAULT_STEPS * part.estimator) * voices
        hift = self.assumed.hift_gflop * 1e9 * voices
        flop_16, flop_32 = (flow, hift) if size == DTYPE.itemsize else (0, flow + hift)
        seconds = self._seconds(SOUND_LAUNCHES, SOUND_KERNELS, read, flop_16, flop_32)
        if ends_turn:
            seconds += self._seconds(LAST_LAUNCHES - SOUND_LAUNCHES, 0, read, flop_16, flop_32)
        return seconds

    def _seconds(
        self, launches: float, kernels: float, read: float, flop_16: float, flop_32: float = 0.0
    ) -> float:
        card, assumed = self.card, self.assumed
        host = launches * assumed.launch_us / 1e6
        device = kernels * assumed.kernel_us / 1e6
        memory = read / (card.bytes_per_s * assumed.share_of_bandwidth)
        products = (flop_16 / card.flops_16 + flop_32 / card.flops_32) / assumed.share_of_flops
        return host + device + memory + products
