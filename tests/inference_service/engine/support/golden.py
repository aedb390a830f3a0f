"""The recordings of `tests/data/minicpmo_tiny` and the modules that must reproduce them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, Qwen3ForCausalLM

from inference_service.checkpoints.files import read_json
from inference_service.checkpoints.folder import fill
from inference_service.models.config import SpeechConfig, language_config
from inference_service.models.speech_head import SpeechHead
from inference_service.models.tokenizer import Tokenizer

FOLDER = Path(__file__).parents[3] / "data/minicpmo_tiny"


@cache
def tokenizer() -> Tokenizer:
    """The recordings' tokenizer: 745 tokens, the special ones by their published names."""
    return Tokenizer.load(FOLDER)


@cache
def recording(name: str) -> dict[str, Any]:
    """The JSON part of a recording, as recorded."""
    data: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return data


@cache
def units(name: str) -> list[dict[str, Any]]:
    """The units of a recorded conversation.

    Each also has `decided`, all decided ids including those that were not fed, and `speech`, the inputs and
    codes of the speech head. In the scripted conversation `speech` is from the run in which every turn starts
    with an empty context.
    """
    cleaned = {"duplex_script": "duplex_script_clean_tts"}.get(name, name)
    clean = {unit["unit"]: unit for unit in recording(cleaned)["units"]}
    return [
        unit | {"decided": [step["used"] for step in unit["steps"]], "speech": clean[unit["unit"]]["tts"]}
        for unit in recording(name)["units"]
    ]


@cache
def tensors(name: str) -> dict[str, Tensor]:
    """The tensors of a recording."""
    loaded: dict[str, Tensor] = load_file(FOLDER / f"{name}.safetensors")
    return loaded


def prompt_ids(case: dict[str, Any]) -> list[int]:
    """Return the prompt's ids of a recorded chat."""
    ids: list[int] = tensors("chat")[f"{case['name']}.input_ids"].tolist()
    return ids


_UNUSED = ("tts.projector_spk.", "tts.model.embed_tokens.")


def _weights(prefix: str) -> dict[str, Tensor]:
    """Tensors below a prefix; those that no part of the architecture reads are left out."""
    found = {k: v for k, v in tensors("model").items() if k.startswith(prefix) and not k.startswith(_UNUSED)}
    return {k.removeprefix(prefix): v for k, v in found.items()}


def language_model() -> Qwen3ForCausalLM:
    """The language model, through the same classes and checks as any checkpoint."""
    model = Qwen3ForCausalLM(language_config(read_json(FOLDER, "config.json")))
    fill(model, _weights("llm."))
    return model.eval()


def speech_head() -> SpeechHead:
    """The speech head; the recorded model draws from all its codes."""
    raw = read_json(FOLDER, "config.json")["tts_config"]
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    config = SpeechConfig(
        codes=raw["num_audio_tokens"] - 1,
        codes_per_second=25,
        audio_bos_token_id=raw["audio_bos_token_id"],
        repetition_penalty=1.05,
        repetition_window=16,
        top_k=raw["num_audio_tokens"],
        backbone=LlamaConfig(
            vocab_size=1,
            bos_token_id=None,
            eos_token_id=None,
            num_key_value_heads=raw["num_key_value_heads"],
            max_position_embeddings=raw["max_position_embeddings"],
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            **{name: raw[name] for name in sizes},
        ),
    )
    head = SpeechHead(config, raw["llm_dim"], raw["num_text_tokens"])
    weights = _weights("tts.")
    length, direction = (weights.pop(f"head_code.0.parametrizations.weight.original{i}") for i in (0, 1))
    weights["head_code.0.weight"] = length * direction / direction.norm(dim=1, keepdim=True)
    fill(head, weights)
    return head.eval()


def close_to(actual: Tensor, expected: Tensor, limit: float) -> bool:
    """Whether no element differs by more than `limit`."""
    return actual.shape == expected.shape and bool(torch.all((actual - expected).abs() <= limit))
