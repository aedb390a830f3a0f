"""Two models with random weights: the tiny one of the tests, and one of 8 layers of width 512."""

import json
from pathlib import Path
from typing import Any

import torch

from inference_service.checkpoints.minicpmo import MiniCPMOCheckpoint, load_minicpmo
from inference_service.families import minicpmo, minicpmo_voice
from inference_service.kernels.packed_linear import pack_linears
from inference_service.models.minicpmo.config import parse_config
from inference_service.models.minicpmo.model import MiniCPMO
from inference_service.models.token2wav.config import (
    EncoderConfig,
    EstimatorConfig,
    Token2WavConfig,
    VocoderConfig,
)
from inference_service.models.token2wav.flow import VoicePrompt
from inference_service.models.token2wav.model import Token2Wav
from inference_service.session.kinds.components import DuplexComponents, SpeechComponents

TINY = Path(__file__).parents[2] / "tests/data/minicpmo_tiny"
CONTEXT = 2048
_VOICE_TOKENS = 50
_SEED = 1


def tiny() -> DuplexComponents:
    """Return the tiny model of the tests: two layers of width 256."""
    loaded = load_minicpmo(TINY, torch.device("cpu"), torch.float32)
    return _parts(loaded, EncoderConfig(6561, 32, 4, 48, 2, 1), EstimatorConfig(24, 2, 2, 8), 32)


def larger() -> DuplexComponents:
    """Return a model of eight layers of width 512, with larger other parts and the tiny model's tokenizer."""
    raw: dict[str, Any] = json.loads((TINY / "config.json").read_text())
    raw |= {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}
    raw |= {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}
    raw["audio_config"] |= {"d_model": 256, "encoder_layers": 6, "encoder_attention_heads": 4}
    raw["audio_config"]["encoder_ffn_dim"] = 1024
    raw["tts_config"] |= {"llm_dim": 512, "hidden_size": 256, "intermediate_size": 768}
    raw["tts_config"]["num_hidden_layers"] = 5
    preprocessor = json.loads((TINY / "preprocessor_config.json").read_text())
    config = parse_config(raw, preprocessor)
    torch.manual_seed(_SEED)
    known = load_minicpmo(TINY, torch.device("cpu"), torch.float32)
    model = pack_linears(MiniCPMO(config).eval())
    loaded = MiniCPMOCheckpoint("512 x 8", model, known.tokenizer, config, known.bad_token_ids)
    return _parts(loaded, EncoderConfig(6561, 128, 4, 512, 3, 2), EstimatorConfig(128, 4, 4, 32), 128)


def _parts(
    loaded: MiniCPMOCheckpoint, encoder: EncoderConfig, estimator: EstimatorConfig, channels: int
) -> DuplexComponents:
    torch.manual_seed(_SEED)
    vocoder = VocoderConfig(channels=channels, f0_channels=channels)
    token2wav = Token2Wav(Token2WavConfig(encoder, estimator, vocoder)).eval()
    for parameter in pack_linears(token2wav).parameters():
        parameter.requires_grad_(False)
    tokens = torch.arange(_VOICE_TOKENS)
    prompt = VoicePrompt(tokens, torch.randn(2 * _VOICE_TOKENS, 80), torch.randn(192))
    assert loaded.model.tts is not None
    mouth = minicpmo_voice.Token2WavMouth(token2wav, prompt)
    voices = SpeechComponents(loaded.model.tts, mouth, minicpmo.SPEECH_CAPACITY)
    return minicpmo.components(loaded, voices, context_limit=CONTEXT)
