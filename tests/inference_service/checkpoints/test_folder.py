"""Loading a checkpoint folder: what is wrong with it is said in words, before anything runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inference_service.checkpoints import location
from inference_service.checkpoints.folder import load_duplex
from inference_service.checkpoints.location import SHIPPED, find
from inference_service.errors import ConfigurationError
from inference_service.families.antiphon_mini import model_info
from inference_service.families.shipped import limited
from inference_service.interface.setups import DuplexSettings, Window, WindowMode
from inference_service.models.config import parse_config
from inference_service.models.errors import CheckpointError
from tests.inference_service.engine.support import tiny

CPU = torch.device("cpu")
Tensors = dict[str, Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.save(tmp_path / "tiny")
    return tmp_path / "tiny"


def change_tensors(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def change_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as refused:
        load_duplex(folder, CPU)
    return str(refused.value)


def test_loaded_model_has_the_stored_weights(folder: Path) -> None:
    model, tokenizer, config = load_duplex(folder, CPU)
    stored = load_file(folder / "model.safetensors")
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in stored.items())
    assert (config.name, tokenizer.size) == ("tiny", 745)
    assert not model.training


def test_tied_head_is_stored_once(folder: Path) -> None:
    model, _, _ = load_duplex(folder, CPU)
    assert "llm.lm_head.weight" not in load_file(folder / "model.safetensors")
    assert model.llm.lm_head.weight is model.llm.model.embed_tokens.weight


def test_weights_of_another_precision_are_converted(folder: Path) -> None:
    change_tensors(folder, lambda t: t.update({k: v.bfloat16() for k, v in t.items()}))
    model, _, _ = load_duplex(folder, CPU)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}


def test_checkpoint_with_a_vision_encoder_sees_and_one_without_does_not(folder: Path, tmp_path: Path) -> None:
    tiny.save(tmp_path / "seeing", sees=True)
    assert load_duplex(tmp_path / "seeing", CPU)[2].vision is not None
    assert load_duplex(folder, CPU)[2].vision is None


def test_vision_encoder_without_its_weights_is_refused(tmp_path: Path) -> None:
    tiny.save(tmp_path / "seeing", sees=True)
    change_tensors(tmp_path / "seeing", lambda t: [t.pop(k) for k in list(t) if k.startswith("vpm.")])
    assert "vpm." in refusal(tmp_path / "seeing")


def test_checkpoint_is_found_by_name_or_path(folder: Path) -> None:
    assert find("antiphon-mini") == SHIPPED / "antiphon-mini"
    assert find(str(folder)) == folder
    with pytest.raises(CheckpointError, match=r"no model 'nobody'.*antiphon-mini"):
        find("nobody")


def test_compiled_code_in_the_package_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "__pycache__").mkdir()
    monkeypatch.setattr(location, "SHIPPED", tmp_path)
    with pytest.raises(CheckpointError, match=r"a shipped name \(none\)"):
        location.find("__pycache__")


def tensors(change: Callable[[Tensors], object]) -> Callable[[Path], None]:
    return lambda folder: change_tensors(folder, change)


def config(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, change)


def written(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def shrink_vocabulary(folder: Path) -> None:
    change_config(folder, lambda c: c.update(vocab_size=700))
    change_tensors(
        folder, lambda t: t.update({k: v[:700].clone() for k, v in t.items() if v.shape[0] == 768})
    )


UNUSABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing tensor": (
        tensors(lambda t: t.pop("apm.norm.weight")),
        "lacks 1 tensors the architecture needs (first: apm.norm.weight)",
    ),
    "a missing head": (config(lambda c: c.update(tie_word_embeddings=False)), "(first: llm.lm_head.weight)"),
    "another tensor": (
        tensors(lambda t: t.update({"vpm.weight": torch.zeros(1)})),
        "has 1 tensors the architecture has no place for (first: vpm.weight)",
    ),
    "a tensor of another shape": (
        tensors(lambda t: t.update({"apm.norm.weight": torch.ones(3)})),
        "apm.norm.weight is [3]; config.json asks for [16].",
    ),
    **{
        f"a missing {name}": (lambda folder, name=name: (folder / name).unlink(), f"has no {name}")
        for name in ("config.json", "model.safetensors", "tokenizer.json")
    },
    "damaged weights": (
        written("model.safetensors", "not safetensors"),
        "is not a readable safetensors file",
    ),
    "pickled weights": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "Weights are read as safetensors only",
    ),
    "broken JSON": (written("config.json", "{"), "is not valid JSON"),
    "no JSON object": (written("config.json", "[]"), "does not hold a JSON object"),
    "no rotary base": (config(lambda c: c.pop("rope_theta")), "states no rope_theta"),
    **{
        f"no {name}": (config(lambda c, name=name: c.pop(name)), name)
        for name in ("hidden_size", "vocab_size", "audio_config", "tts_config", "duplex", "name")
    },
    "a misnamed field": (config(lambda c: c["audio_config"].update(kernels=3)), "kernels"),
    "a damaged tokenizer": (written("tokenizer.json", "{}"), "is not a readable tokenizer"),
    "a large tokenizer": (
        shrink_vocabulary,
        "tokenizer.json has 745 tokens; config.json's vocab_size is only 700",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_folder_is_refused_with_the_reason(folder: Path, case: str) -> None:
    change, problem = UNUSABLE[case]
    change(folder)
    assert problem in refusal(folder)


def test_rotary_base_may_stand_in_rope_parameters() -> None:
    raw = tiny.raw_config()
    raw["rope_parameters"] = {"rope_type": "default", "rope_theta": raw.pop("rope_theta")}
    assert parse_config(raw).language.rope_parameters["rope_theta"] == 10_000.0


def test_unknown_duplex_default_is_named() -> None:
    raw = tiny.raw_config()
    raw["duplex"]["defaults"]["temprature"] = 0.7
    with pytest.raises(CheckpointError, match="temprature"):
        model_info(parse_config(raw))


def test_model_info_has_sample_rates_window_and_defaults() -> None:
    info = model_info(parse_config(tiny.raw_config()))
    assert (info.input_sample_rate_hz, info.output_sample_rate_hz) == (16_000, 24_000)
    assert info.window == Window(WindowMode.BASIC, 256, 192)
    assert info.duplex_defaults == DuplexSettings(force_listen_count=1, temperature=1.0, tts_temperature=0.8)


def test_smaller_context_limit_makes_the_window_fit() -> None:
    config = limited(parse_config(tiny.raw_config()), 200)
    assert (config.context_limit, config.window_high, config.window_low) == (200, 200, 150)


def test_larger_context_limit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at most the model's 512, not 513"):
        limited(parse_config(tiny.raw_config()), 513)


def test_tokenizer_without_the_duplex_tokens_is_refused(folder: Path) -> None:
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["added_tokens"] = [t for t in raw["added_tokens"] if t["content"] not in ("<unit>", "<|listen|>")]
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    assert refusal(folder) == "tokenizer.json lacks the duplex tokens <unit>, <|listen|>."
