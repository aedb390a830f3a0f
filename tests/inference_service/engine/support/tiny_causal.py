"""Causal language models of a few thousand random weights, with a tokenizer, as transformers saves them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoModelForCausalLM as AutoModel
from transformers import (
    Gemma2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3MoeConfig,
)

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = ("think", "answer", "system", "user", "assistant")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "pad_token_id": None,
}


def tokenizer(*, chats: bool = True) -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for every byte and for a few words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    merges = []
    for word in WORDS:
        for end in range(2, len(word) + 1):
            pair = (word[: end - 1], word[end - 1])
            if word[:end] not in vocabulary:
                vocabulary[word[:end]] = len(vocabulary)
                merges.append(pair)
    fast = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|im_end|>")
    if chats:
        wrapped.chat_template = TEMPLATE
    return wrapped


def config(kind: str, **changes: Any) -> PretrainedConfig:
    """The configuration of a model of some type."""
    words = tokenizer()
    kinds: dict[str, type[PretrainedConfig]] = {
        "qwen3": Qwen3Config,
        "llama": LlamaConfig,
        "mistral": MistralConfig,
        "qwen3_moe": Qwen3MoeConfig,
        "gemma2": Gemma2Config,
    }
    sizes = {**SIZES, "vocab_size": len(words) + 5, "eos_token_id": words.eos_token_id}
    return kinds[kind](**{**sizes, **changes})


def continued(folder: Path, *, ends: bool = True) -> Callable[[list[int], int], list[int]]:
    """Return a function that continues ids greedily by transformers' `generate`, by `count` ids at most."""
    model = AutoModel.from_pretrained(folder)
    if not ends:
        model.generation_config.eos_token_id = None

    def generate(ids: list[int], count: int) -> list[int]:
        prompt = torch.tensor([ids])
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=count,
            pad_token_id=0,
        )
        return [int(token) for token in out[0, len(ids) :]]

    return generate


def save(folder: Path, kind: str = "qwen3", *, chats: bool = True, **changes: Any) -> Path:
    """Write a model whose greedy output varies, so that two contexts rarely agree by chance."""
    torch.manual_seed(7)
    with torch.inference_mode(mode=False):
        model = AutoModel.from_config(config(kind, **changes))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(6)
        model.save_pretrained(folder)
    tokenizer(chats=chats).save_pretrained(folder)
    return folder
