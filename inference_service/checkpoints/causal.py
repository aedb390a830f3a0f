"""Folders of causal language models as transformers writes them: config, safetensors, fast tokenizer.

Never pickle, never remote code, never the network.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from inference_service.checkpoints.files import read_json
from inference_service.checkpoints.hub import model_name
from inference_service.config.sampling import sampling_ranges
from inference_service.interface.setups import Sampling
from inference_service.kernels.packed_linear import pack_linears
from inference_service.models.chat_template import ChatTemplate
from inference_service.models.errors import CheckpointError
from inference_service.models.plain_tokenizer import PlainTokenizer

_DEFAULTS = ("temperature", "top_p", "top_k", "repetition_penalty")
"""Fields of `generation_config.json` that are defaults of sessions."""


@dataclass(frozen=True)
class CausalCheckpoint:
    """A loaded model with the settings of its folder."""

    name: str
    kind: str
    """Its `model_type`."""
    model: PreTrainedModel
    tokenizer: PlainTokenizer
    template: ChatTemplate | None
    ends: frozenset[int]
    """Ids that end a sequence."""
    context_limit: int
    sampling: Sampling


@dataclass(frozen=True)
class CausalFolder:
    """The settings of a model's folder, without the weights."""

    name: str
    tokens: int
    """The number of the tokenizer's tokens."""
    tokenizer: PlainTokenizer
    template: ChatTemplate | None
    ends: frozenset[int]
    """Ids that end a sequence."""
    sampling: Sampling


def read_folder(folder: Path) -> CausalFolder:
    """Read the tokenizer, the chat template and the defaults. Raises `CheckpointError`."""
    raw = read_json(folder, "config.json")
    tokenizer = _tokenizer(folder)
    generation = _generation(folder)
    return CausalFolder(
        name=model_name(folder),
        tokens=len(tokenizer),
        tokenizer=PlainTokenizer(tokenizer.backend_tokenizer),
        template=ChatTemplate(tokenizer) if tokenizer.chat_template else None,
        ends=_ends(generation, raw, tokenizer),
        sampling=_sampling(generation),
    )


def load(folder: Path, device: torch.device, dtype: torch.dtype) -> CausalCheckpoint:
    """Return a model ready to run on `device`. Raises `CheckpointError`."""
    raw, about = read_json(folder, "config.json"), read_folder(folder)
    model = pack_linears(_model(folder, dtype).to(device).eval())
    rows = model.get_input_embeddings().weight.shape[0]
    if about.tokens > rows:
        raise CheckpointError(
            f"The tokenizer of {folder} has {about.tokens} tokens; the model has embeddings for {rows}."
        )
    return CausalCheckpoint(
        name=about.name,
        kind=str(raw.get("model_type")),
        model=model,
        tokenizer=about.tokenizer,
        template=about.template,
        ends=about.ends,
        context_limit=_context_limit(model),
        sampling=about.sampling,
    )


def read_config(folder: Path) -> PretrainedConfig:
    """Return the configuration of the decoder only. Raises `CheckpointError`."""
    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library raises no narrower type
        raise CheckpointError(f"The configuration in {folder} cannot be read: {error}") from None
    decoder: PretrainedConfig = config.get_text_config(decoder=True)
    return decoder


def _tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    if not (folder / "tokenizer.json").is_file():
        raise CheckpointError(f"{folder} has no tokenizer.json. Save the model's fast tokenizer into it.")
    try:
        return PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # the library raises no narrower type
        raise CheckpointError(f"The tokenizer of {folder} cannot be read: {error}") from None


def _model(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    if not any(folder.glob("*.safetensors")):
        raise CheckpointError(f"{folder} has no *.safetensors. Weights are read as safetensors only.")
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            str(folder),
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # the library raises no narrower type
        raise CheckpointError(f"The model in {folder} cannot be loaded: {error}") from None
    for what, verb in (("missing_keys", "lack"), ("mismatched_keys", "do not fit")):
        if report[what]:
            first = sorted(map(str, report[what]))[0]
            raise CheckpointError(
                f"The weights in {folder} {verb} {len(report[what])} tensors of the model (first: {first})."
            )
    loaded: PreTrainedModel = model
    return loaded


def _generation(folder: Path) -> dict[str, Any]:
    try:
        raw = json.loads((folder / "generation_config.json").read_text())
    except FileNotFoundError:
        return {}
    except ValueError:
        raise CheckpointError(f"{folder / 'generation_config.json'} is not valid JSON.") from None
    return raw if isinstance(raw, dict) else {}


def _ends(
    generation: dict[str, Any], raw: dict[str, Any], tokenizer: PreTrainedTokenizerFast
) -> frozenset[int]:
    """Return the end tokens of the first file that states any: `generation_config.json`, `config.json`, the
    tokenizer.
    """
    for named in (generation.get("eos_token_id"), raw.get("eos_token_id"), tokenizer.eos_token_id):
        if named is not None:
            return frozenset(named if isinstance(named, list) else [named])
    return frozenset()


def _context_limit(model: PreTrainedModel) -> int:
    limit = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 2:
        raise CheckpointError("config.json states no max_position_embeddings; the context needs a limit.")
    return limit


def _sampling(generation: dict[str, Any]) -> Sampling:
    """Return the model's default sampling, as far as its values are valid for a session."""
    ranges = sampling_ranges(1)
    values = {
        name: value
        for name in _DEFAULTS
        if isinstance(value := generation.get(name), int | float)
        and not isinstance(value, bool)
        and value
        and ranges[name].problem(value) is None
    }
    return Sampling(**values)  # type: ignore[arg-type]
