"""Memory of token2wav, computed from its configuration only."""

import torch

from inference_service.models.token2wav.causal_vocoder import KEPT_MEL, KEPT_SOURCE
from inference_service.models.token2wav.config import (
    FRAMES_PER_TOKEN,
    GENERATED_FRAMES,
    HOP,
    MELS,
    Token2WavConfig,
)
from inference_service.models.token2wav.conformer import CONV2_PAST, UP_PAST
from inference_service.models.token2wav.faded_vocoder import FADE, MEL_PAST
from inference_service.models.token2wav.flow import Flow
from inference_service.models.token2wav.hift import Hift


def weight_bytes(config: Token2WavConfig, dtype: torch.dtype) -> int:
    """Return the bytes of the weights with the flow in `dtype`; the vocoder is in float32."""
    with torch.device("meta"):
        nothing = torch.zeros(MELS, 0)
        flow = Flow(config, nothing, steps=1, dtype=dtype, cache_dtype=dtype, reference_quirks=False)
        hift = Hift(config.vocoder)
    return sum(it.nbytes for it in [*flow.parameters(), *hift.parameters()])


def voice_bytes(
    config: Token2WavConfig, prompt_frames: int, *, steps: int, dtype: torch.dtype, cache_dtype: torch.dtype
) -> int:
    """Return the bytes of a voice with a prompt of `prompt_frames` mel frames. Streams share it."""
    return _flow_bytes(config, prompt_frames, steps, dtype, cache_dtype)


def stream_bytes(
    config: Token2WavConfig, prompt_frames: int, *, steps: int, dtype: torch.dtype, cache_dtype: torch.dtype
) -> int:
    """Return the maximal bytes of one stream in such a voice, however long it speaks."""
    flow = _flow_bytes(config, prompt_frames + GENERATED_FRAMES, steps, dtype, cache_dtype)
    harmonics = config.vocoder.harmonics + 1
    if config.vocoder.is_causal:
        numbers = MELS * KEPT_MEL + HOP * KEPT_SOURCE
        return flow + numbers * torch.float32.itemsize + harmonics * torch.float64.itemsize
    return flow + (MELS * MEL_PAST + 2 * FADE + harmonics) * torch.float32.itemsize


def _flow_bytes(
    config: Token2WavConfig, frames: int, steps: int, dtype: torch.dtype, cache_dtype: torch.dtype
) -> int:
    encoder, estimator = config.encoder, config.estimator
    convolved = encoder.width * (CONV2_PAST + UP_PAST)
    seen = encoder.blocks * (frames // FRAMES_PER_TOKEN) + encoder.up_blocks * frames
    heard = config.speaker + convolved + 2 * encoder.width * seen
    per_step = frames * estimator.heads * estimator.head_dim + 2 * estimator.width
    return heard * dtype.itemsize + 4 * steps * estimator.depth * per_step * cache_dtype.itemsize
