"""MiniCPM-o 4.5 at full size with random weights, and a small one for machines without a GPU.

Random weights cost as much as trained ones. The tokenizer is that of the tests, whose ids are within the
published vocabulary.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from benchmarks.full_size.sizes import FULL, TINY, TINY_FOLDER
from inference_service.checkpoints.minicpmo import MiniCPMOCheckpoint
from inference_service.families import minicpmo, minicpmo_voice
from inference_service.models.minicpmo.config import MiniCPMOConfig
from inference_service.models.minicpmo.model import MiniCPMO
from inference_service.models.token2wav.config import Token2WavConfig
from inference_service.models.token2wav.flow import VoicePrompt
from inference_service.models.token2wav.model import Token2Wav
from inference_service.models.tokenizer import Tokenizer
from inference_service.session.kinds.components import DuplexComponents, SpeechComponents

_SEED: Final = 1
_SPREAD: Final = 0.02
_VOICE_TOKENS: Final = 50


@dataclass(frozen=True)
class Size:
    """The dimensions of a model and of its vocoder."""

    name: str
    config: MiniCPMOConfig
    vocoder: Token2WavConfig


def full() -> Size:
    """Return the published dimensions of MiniCPM-o 4.5."""
    return Size(FULL.name, FULL.config, FULL.vocoder)


def small() -> Size:
    """Return the dimensions of the tests' model, which runs on any CPU."""
    return Size(TINY.name, TINY.config, TINY.vocoder)


def weights(size: Size, device: torch.device, dtype: torch.dtype) -> MiniCPMO:
    """Return the model with random weights, without its vocoder."""
    torch.manual_seed(_SEED)
    model = MiniCPMO.hollow(size.config, speech=True)
    state = {name: _random(name, tensor, device, dtype) for name, tensor in model.state_dict().items()}
    return filled(model, state)


def filled(model: MiniCPMO, state: dict[str, Tensor]) -> MiniCPMO:
    """Load `state` into a model without weights, and move it to the device of `state`."""
    model.load_state_dict(state, assign=True)
    return model.to(next(iter(state.values())).device).eval().requires_grad_(False)


def components(size: Size, device: torch.device, dtype: torch.dtype, context_limit: int) -> DuplexComponents:
    """Return the components of a random model with vocoder and voice on `device`."""
    model = weights(size, device, dtype)
    token2wav = Token2Wav(size.vocoder).to(device).eval().requires_grad_(False)
    tokenizer = Tokenizer.load(TINY_FOLDER)
    checkpoint = MiniCPMOCheckpoint(size.name, model, tokenizer, size.config, ())
    assert model.tts is not None
    mouth = minicpmo_voice.Token2WavMouth(token2wav, voice())
    speech = SpeechComponents(model.tts, mouth, minicpmo.SPEECH_CAPACITY)
    return minicpmo.components(checkpoint, speech, context_limit=context_limit)


def _random(name: str, like: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return random values; norms are ones and biases zeros, as in a model before its training."""
    if like.ndim < 2:
        fill = torch.zeros if name.endswith("bias") else torch.ones
        return fill(like.shape, device=device, dtype=dtype)
    return nn.init.normal_(torch.empty(like.shape, device=device, dtype=dtype), std=_SPREAD)


def voice() -> VoicePrompt:
    """Return a random voice of two seconds."""
    generator = torch.Generator().manual_seed(_SEED)
    mel = torch.randn(2 * _VOICE_TOKENS, 80, generator=generator)
    return VoicePrompt(torch.arange(_VOICE_TOKENS), mel, torch.randn(192, generator=generator))
