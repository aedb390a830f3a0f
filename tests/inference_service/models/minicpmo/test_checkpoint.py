"""Checkpoints in the published layout: every tensor in its place, one clear error for what does not fit."""

import io
import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from inference_service.checkpoints.minicpmo import (
    INDEX,
    WHOLE,
    MiniCPMOCheckpoint,
    load_minicpmo,
    read_minicpmo,
    weight_files,
)
from inference_service.models.errors import CheckpointError
from tests.inference_service.engine.support import golden
from tests.inference_service.models.minicpmo import published

CPU = torch.device("cpu")
IGNORED = {
    "tts.model.embed_tokens.weight",
    "tts.projector_spk.linear1.weight",
    "tts.projector_spk.linear1.bias",
    "tts.projector_spk.linear2.weight",
    "tts.projector_spk.linear2.bias",
}
NORM = tuple(f"tts.head_code.0.parametrizations.weight.original{i}" for i in (0, 1))
HEAD = "tts.head_code.0.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return published.write(tmp_path / "MiniCPM-o-4_5")


def stored() -> dict[str, Tensor]:
    return golden.tensors("model")


def loaded_from(folder: Path, dtype: torch.dtype = torch.float32, **options: bool) -> MiniCPMOCheckpoint:
    return load_minicpmo(folder, CPU, dtype, **options)


def refusal(folder: Path, **options: bool) -> str:
    with pytest.raises(CheckpointError) as refused:
        loaded_from(folder, **options)
    return str(refused.value)


def changing(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> str:
    """How a checkpoint with such weights is refused."""
    published.change_weights(folder, change)
    return refusal(folder)


def test_every_tensor_is_in_its_place_and_none_is_left_without_memory(loaded: MiniCPMOCheckpoint) -> None:
    model = loaded.model
    assert set(model.state_dict()) == set(stored()) - IGNORED - set(NORM) | {HEAD}
    for name, tensor in model.state_dict().items():
        if name != HEAD:
            assert torch.equal(tensor, stored()[name]), name
    assert not [name for name, it in (*model.named_parameters(), *model.named_buffers()) if it.is_meta]
    assert not model.training


def test_the_weight_norm_of_the_code_head_is_folded(loaded: MiniCPMOCheckpoint) -> None:
    length, direction = (stored()[name] for name in NORM)
    head = loaded.model.state_dict()[HEAD]
    assert torch.allclose(head.norm(dim=1, keepdim=True), length.abs(), rtol=1e-6)
    assert torch.allclose(torch.nn.functional.cosine_similarity(head, direction), torch.ones(()), atol=1e-6)


@pytest.mark.parametrize("shards", [0, 1, 5])
def test_shards_and_one_file_are_the_same(tmp_path: Path, loaded: MiniCPMOCheckpoint, shards: int) -> None:
    folder = published.write(tmp_path, shards=shards)
    assert len(weight_files(folder)) == max(1, shards)
    other = loaded_from(folder).model.state_dict()
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(other[name], tensor), name


def test_bfloat16_is_for_weights_alone(folder: Path, loaded: MiniCPMOCheckpoint) -> None:
    model = loaded_from(folder, torch.bfloat16).model
    assert {it.dtype for it in model.parameters()} == {torch.bfloat16}
    assert {it.dtype for it in model.buffers()} == {torch.float32}, "rotations are computed in float32"
    expected = loaded.model.state_dict()[HEAD].to(torch.bfloat16)
    assert torch.equal(model.state_dict()[HEAD], expected), "folded before it is rounded"


def test_bfloat16_weights_are_converted_to_requested_dtype(folder: Path) -> None:
    published.change_weights(folder, lambda t: t.update({k: v.to(torch.bfloat16) for k, v in t.items()}))
    model = loaded_from(folder).model
    assert {it.dtype for it in model.parameters()} == {torch.float32}
    name = "llm.lm_head.weight"
    assert torch.equal(model.state_dict()[name], stored()[name].to(torch.bfloat16).float())


def test_without_speech_its_weights_may_be_missing(folder: Path) -> None:
    model = loaded_from(folder, speech=False).model
    assert model.tts is None
    assert not [name for name in model.state_dict() if name.startswith("tts.")]
    published.change_weights(folder, lambda t: [t.pop(name) for name in list(t) if name.startswith("tts.")])
    assert loaded_from(folder, speech=False).model.tts is None
    assert "tts.emb_text.weight" in refusal(folder)


@pytest.mark.parametrize("missing", [True, False])
def test_unused_tensors_may_have_any_shape_or_be_missing(folder: Path, missing: bool) -> None:
    """A full checkpoint has 32,000 rows where the recorded one was cut to 16."""
    rows = {"tts.model.embed_tokens.weight": torch.zeros(32_000, 64)}
    published.change_weights(folder, lambda t: [t.pop(it) for it in IGNORED] if missing else t.update(rows))
    assert loaded_from(folder).model.tts is not None


def without(*names: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda t: [t.pop(name) for name in list(t) if name.startswith(names)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            without("vpm.post_layernorm.bias", NORM[0]),
            f"lack 2 tensors that the model needs (vpm.post_layernorm.bias, {HEAD})",
        ),
        (
            lambda t: t.update({"apm.layers.2.fc1.weight": torch.zeros(1), "tts.strange": torch.zeros(1)}),
            "have 2 that it has no place for (apm.layers.2.fc1.weight, tts.strange)",
        ),
        (
            lambda t: t.update({"resampler.question": t.pop("resampler.query")}),
            "(resampler.query) and have 1 that it has no place for (resampler.question)",
        ),
        (lambda t: t.update({NORM[0]: torch.ones(3)}), f"{NORM[0]} is [3]"),
        *(
            (
                lambda t, name=name: t.update({name: torch.zeros(3, 5)}),
                f"{name} is [3, 5] and not {list(stored()[name].shape)}",
            )
            for name in ("apm.conv1.weight", "llm.model.norm.weight", "resampler.proj")
        ),
    ],
)
def test_missing_left_over_and_misshapen_tensors_are_listed(
    folder: Path, change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    refused = changing(folder, change)
    assert message in refused
    assert str(folder) in refused


def test_of_many_missing_tensors_the_first_are_listed(folder: Path) -> None:
    message = changing(folder, without("apm."))
    assert "apm.conv1.weight" in message
    assert message.count("apm.") == 8
    assert "and 29 more)" in message


@pytest.mark.parametrize(
    "name", ["config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"]
)
def test_an_absent_file_or_shard_is_named(folder: Path, name: str) -> None:
    (folder / "model-00002-of-00003.safetensors").unlink()
    told = "lacks 1 of the 3 files of model.safetensors.index.json (model-00002-of-00003.saf"
    assert told in refusal(folder)
    (folder / name).unlink()
    assert refusal(folder) == f"{folder} lacks {name}. Download the whole checkpoint into it."


@pytest.mark.parametrize(
    "content", [b"", b"no safetensors", bytes(64), None], ids=["empty", "", "zeros", "cut short"]
)
def test_a_damaged_shard_is_named(folder: Path, content: bytes | None) -> None:
    path = folder / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-1000] if content is None else content)
    message = refusal(folder)
    assert "model-00002-of-00003.safetensors is not a readable safetensors file. Download it again" in message


@pytest.mark.parametrize(
    "place", ["../model.safetensors", "/etc/passwd", "pytorch_model.bin", "a/b.safetensors", ""]
)
def test_an_index_that_leads_elsewhere_is_refused(folder: Path, place: str) -> None:
    published.change_json(folder / INDEX, lambda raw: raw["weight_map"].update({"llm.lm_head.weight": place}))
    assert f"names {place!r}, which is no *.safetensors beside it" in refusal(folder)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"a": 1}}, {"weight_map": {}}])
def test_an_index_of_nothing_is_refused(folder: Path, index: dict[str, Any]) -> None:
    (folder / INDEX).write_text(json.dumps(index))
    assert "must hold a weight_map of tensors to file names" in refusal(folder)


def test_a_folder_without_weights_says_what_to_do(folder: Path) -> None:
    for path in [*folder.glob("*.safetensors"), folder / INDEX]:
        path.unlink()
    assert refusal(folder) == (
        f"{folder} has neither {WHOLE} nor {INDEX}. Download the checkpoint's safetensors files into it."
    )


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "pytorch_model-00001-of-00004.bin"])
def test_pickled_weights_are_refused_and_never_read(folder: Path, name: str) -> None:
    for path in [*folder.glob("*.safetensors"), folder / INDEX]:
        path.unlink()
    (folder / name).write_bytes(pickle.dumps(Trap(folder / "was_unpickled")))
    message = refusal(folder)
    assert f"has its weights as pickles only ({name}), which can run any code and are not read" in message
    assert "Download the checkpoint's safetensors files, or write them with safetensors.torch" in message
    assert not (folder / "was_unpickled").exists()


def test_pickles_beside_safetensors_and_code_of_the_folder_are_left_alone(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(folder / "was_unpickled")))
    assert "auto_map" in json.loads((folder / "config.json").read_text())
    modules = set(sys.modules)
    checkpoint = loaded_from(folder)

    assert not (folder / "was_unpickled").exists()
    assert not (folder / "code_was_run").exists()
    loaded = set(sys.modules) - modules
    assert not [name for name in loaded if "minicpmo" in name or "transformers_modules" in name]
    assert checkpoint.model.tts is not None
    assert checkpoint.name == "MiniCPM-o-4_5"
    assert len(checkpoint.bad_token_ids) == 160
    assert max(checkpoint.bad_token_ids) < 639
    assert checkpoint.tokenizer.chat_template is not None


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"model_type": "minicpmv"}, "model_type must be 'minicpmo', not 'minicpmv'"),
        (
            "config.json",
            {"vocab_size": 700},
            "tokenizer.json has 745 tokens; config.json's vocab_size is only 700.",
        ),
        *(
            (
                "tokenizer_config.json",
                {"bad_token_ids": ids},
                "bad_token_ids must be a list of ids from 0 to 767",
            )
            for ids in ("all", [-1], [768], [1.5], [[1]])
        ),
    ],
)
def test_another_model_vocabulary_or_bad_ids_are_refused(
    folder: Path, file: str, change: dict[str, object], message: str
) -> None:
    published.change_json(folder / file, lambda raw: raw.update(change))
    assert message in refusal(folder)


def test_the_configuration_is_read_without_weights(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        path.unlink()
    assert read_minicpmo(folder).language.hidden_size == 256


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    loaded_from(folder)
    shown = terminal.getvalue()
    assert "weights" in shown
    size = sum(tensor.nbytes for path in weight_files(folder) for tensor in load_file(path).values())
    assert f"{size / 1e6:.2f}M" in shown
    assert "100%" in shown


def test_no_progress_is_shown_elsewhere(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    loaded_from(folder)
    assert capfd.readouterr().err == ""
