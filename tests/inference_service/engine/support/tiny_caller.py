"""Tiny causal language models with tools, in the chat templates of several families."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM as AutoModel
from transformers import PreTrainedTokenizerFast

from tests.inference_service.engine.support import tiny_causal

_TALK = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "<|im_end|>\n"
    "{% elif m.role != 'system' or not loop.first %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{% set it = call.function %}CALL{% endfor %}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
_SYSTEM = (
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% if system or tools %}<|im_start|>system\n{{ system }}"
    "{% if tools %}\n\n# Tools\n{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endif %}"
)


def _template(call: str) -> str:
    return _SYSTEM + _TALK.replace("CALL", call)


_HERMES = _template(
    '\n<tool_call>\n{"name": "{{ it.name }}", "arguments": {{ it.arguments | tojson }}}\n</tool_call>'
)
TEMPLATES = {
    "hermes": _HERMES,
    "llama": _template('{"name": "{{ it.name }}", "parameters": {{ it.arguments | tojson }}}'),
    "another": _template("<function={{ it.name }}>{{ it.arguments | tojson }}</function>"),
    "opens a thought": _HERMES.replace("<think>\n\n</think>\n\n{% endif %}", "{% endif %}<think>\n"),
    "none": tiny_causal.TEMPLATE,
}
"""The chat templates, with each family's format of tools, calls and results."""
_MARKS = {"llama": [AddedToken("<|python_tag|>", special=True)], "none": []}
_WORDS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


def tokenizer(family: str = "hermes") -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for every byte and for the marks around calls."""
    words = tiny_causal.tokenizer()
    words.backend_tokenizer.add_tokens(
        _MARKS.get(family, [AddedToken(text, special=False) for text in _WORDS])
    )
    words.chat_template = TEMPLATES[family]
    return words


def save(folder: Path, family: str = "hermes", **changes: Any) -> Path:
    """Write a model with random weights."""
    words = tokenizer(family)
    sizes = {
        "vocab_size": len(words) + 5,
        "eos_token_id": words.convert_tokens_to_ids("<|im_end|>"),
        "max_position_embeddings": 1024,
        **changes,
    }
    torch.manual_seed(7)
    AutoModel.from_config(tiny_causal.config("qwen3", **sizes)).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 4},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
