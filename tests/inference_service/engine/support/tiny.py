"""A complete duplex model of a few thousand random weights, and its checkpoint folder."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from inference_service.models.chat_template import ChatTemplate
from inference_service.models.config import ModelConfig, parse_config
from inference_service.models.duplex import DuplexModel
from inference_service.models.tokenizer import Tokenizer
from tests.inference_service.engine.support import golden

CODES = 32
SIDE = 16
"""Width and height of the pictures that it sees."""
PICTURE_TOKENS = 3
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif -%}
{%- if use_tts_template is defined and use_tts_template is true -%}<|tts_bos|>{%- endif -%}
{%- endif -%}
"""
"""The template that renders the recordings' chats; its end equals theirs."""
TRANSCRIPTION_PROMPT = "<|im_start|>system\nTranscribe.<|im_end|>"


_DECODER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
}


def raw_config(*, sees: bool = False) -> dict[str, Any]:
    """The `config.json`."""
    vision = {"vision_config": {"image_size": SIDE, "hidden": 8, "queries": PICTURE_TOKENS}} if sees else {}
    return {
        **vision,
        **_DECODER,
        "name": "tiny",
        "vocab_size": 768,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rope_theta": 10_000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "audio_config": {"hidden": 16, "blocks": 2, "kernel": 5, "expansion": 2, "pool": 5},
        "tts_config": {
            **_DECODER,
            "num_key_value_heads": 4,
            "num_audio_tokens": CODES + 1,
            "codes_per_second": 25,
            "audio_bos_token_id": 684,
            "repetition_penalty": 1.05,
            "repetition_window": 16,
            "top_k": 25,
        },
        "vocoder_config": {"codes": CODES, "sample_rate_hz": 24_000, "frames_per_code": 4, "bands": 8},
        "duplex": {
            "prompt_prefix": "<|im_start|>system\n",
            "prompt_suffix": "<|im_end|>",
            "context_limit": 512,
            "window_high": 256,
            "window_low": 192,
            "defaults": {"force_listen_count": 1, "temperature": 1.0, "tts_temperature": 0.8},
        },
        "transcription": {"prompt": TRANSCRIPTION_PROMPT},
    }


@torch.no_grad()
def model(seed: int = 0, *, sees: bool = False) -> tuple[DuplexModel, Tokenizer, ModelConfig]:
    """A model with random weights; it speaks almost always, and every session differently."""
    config = parse_config(raw_config(sees=sees))
    torch.manual_seed(seed)
    built = DuplexModel(config)
    for parameter in built.llm.parameters():
        if parameter.dim() > 1:
            parameter.mul_(5)
    built.vocoder.codebook.copy_(codebook(config))
    return built.eval(), tokenizer(), config


@cache
def tokenizer() -> Tokenizer:
    """The recordings' tokenizer with a chat template."""
    path = str(golden.FOLDER / "tokenizer.json")
    chatting = PreTrainedTokenizerFast(tokenizer_file=path, chat_template=CHAT_TEMPLATE)
    return Tokenizer(FastTokenizer.from_file(path), ChatTemplate(chatting))


def codebook(config: ModelConfig) -> Tensor:
    """Sounds of random colour around 150 Hz, half of them voiced."""
    sizes = config.vocoder
    frames = torch.randn(sizes.codes, sizes.frames_per_code, sizes.bands + 2)
    frames[..., : sizes.bands] -= 5
    frames[..., sizes.bands] = frames[..., sizes.bands] * 0.1 + 5
    return frames


def save(folder: Path, *, sees: bool = False) -> None:
    """Writes the checkpoint in the layout of a real one; tied weights are stored once."""
    built, _, _ = model(sees=sees)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw_config(sees=sees)))
    tensors = {k: v.contiguous() for k, v in built.state_dict().items() if k != "llm.lm_head.weight"}
    save_file(tensors, folder / "model.safetensors")
    shutil.copyfile(golden.FOLDER / "tokenizer.json", folder / "tokenizer.json")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
