"""A Voxtral Realtime checkpoint of a few thousand random weights, in the layout of a published one."""

import base64
import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    VoxtralRealtimeConfig,
    VoxtralRealtimeFeatureExtractor,
    VoxtralRealtimeForConditionalGeneration,
)

CONTROLS = 40
WORDS = [bytes([i]) for i in range(256)] + [f" {a}{b}".encode() for a in "aeiou" for b in "nrst"]
VOCABULARY = CONTROLS + len(WORDS)
PAD, BEGIN, END = 32, 1, 2
BANDS, HOP = 16, 160
LEFT_PAD, DELAY = 5, 2
PROMPT = 1 + LEFT_PAD + DELAY
REACH, EAR_REACH = 20, 30
"""Sliding windows of the decoder and of the encoder, in rows."""


def config(head_dim: int = 8, theta: float = 10_000.0) -> VoxtralRealtimeConfig:
    """Return a config with two layers per module, and windows shorter than every utterance."""
    shared = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": head_dim,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
    }
    return VoxtralRealtimeConfig(
        audio_config={
            **shared, "model_type": "voxtral_realtime_encoder", "num_mel_bins": BANDS,
            "sliding_window": EAR_REACH,
        },
        text_config={
            **shared, "model_type": "voxtral_realtime_text", "vocab_size": VOCABULARY,
            "num_key_value_heads": 2, "sliding_window": REACH,
        },
        default_num_delay_tokens=DELAY,
        tie_word_embeddings=False,
    )  # fmt: skip


@torch.no_grad()
def network(**changes: Any) -> VoxtralRealtimeForConditionalGeneration:
    """Return a model with random weights, so large that its output depends on its input."""
    torch.manual_seed(1)
    built = VoxtralRealtimeForConditionalGeneration(config(**changes))
    for parameter in built.parameters():
        if parameter.dim() > 1:
            parameter.mul_(5)
    built.model.multi_modal_projector.linear_2.weight.mul_(2)
    built.model.language_model.embed_tokens.weight.mul_(20)
    for layer in built.model.audio_tower.layers:
        layer.self_attn.q_proj.weight.mul_(3)
    return built.eval()


def tekken(hop: int = HOP) -> dict[str, Any]:
    """The `tekken.json`: bytes, a few words, and control tokens at their published places."""
    names = {0: "<unk>", BEGIN: "<s>", END: "</s>", PAD: "[STREAMING_PAD]", 33: "[STREAMING_WORD]"}
    return {
        "config": {
            "pattern": ".",
            "num_vocab_tokens": len(WORDS),
            "default_vocab_size": VOCABULARY,
            "default_num_special_tokens": CONTROLS,
            "version": "v13",
        },
        "vocab": [
            {"rank": i, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
            for i, word in enumerate(WORDS)
        ],
        "special_tokens": [
            {"rank": i, "token_str": names.get(i, f"<SPECIAL_{i}>"), "is_control": True}
            for i in range(CONTROLS)
        ],
        "audio": {
            "sampling_rate": 16_000,
            "frame_rate": 2000 / hop,
            "audio_encoding_config": {"num_mel_bins": BANDS, "hop_length": hop, "window_size": 400},
            "chunk_length_s": None,
            "transcription_format": "streaming",
            "transcription_delay_ms": hop / 2 * DELAY,
            "streaming_look_ahead_ms": 2.5,
            "streaming_look_back_ms": 52.5,
            "streaming_n_left_pad_tokens": LEFT_PAD,
        },
    }


def features(hop: int = HOP) -> VoxtralRealtimeFeatureExtractor:
    return VoxtralRealtimeFeatureExtractor(feature_size=BANDS, hop_length=hop)


def save(folder: Path, hop: int = HOP, **changes: Any) -> Path:
    """Writes the checkpoint; with a longer hop a token stands for more time than the published 80 ms."""
    folder.mkdir(parents=True, exist_ok=True)
    network(**changes).save_pretrained(folder)
    features(hop).save_pretrained(folder)
    (folder / "tekken.json").write_text(json.dumps(tekken(hop)))
    return folder
