"""A worker refuses a checkpoint that it cannot serve in one sentence, with exit code 2, and loads nothing."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inference_service.checkpoints import minicpmo as checkpoint
from inference_service.errors import ConfigurationError
from inference_service.families import table
from inference_service.families.memory import footprint
from inference_service.models.errors import CheckpointError
from inference_service.options import SpeechOptions
from tests.cli.support.process import run_cli
from tests.inference_service.engine.support import tiny_causal
from tests.inference_service.models.minicpmo import published, whole

CPU = torch.device("cpu")
SHARD = "model-00002-of-00003.safetensors"
Change = Callable[[Path], None]


def reshape(file: str, name: str, *shape: int) -> Change:
    """Give a tensor of a file another shape."""
    return lambda folder: _rewrite(folder / file, lambda tensors: tensors.update({name: torch.zeros(shape)}))


def _rewrite(path: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def quantise(folder: Path) -> None:
    name = next(iter(sorted(load_file(folder / SHARD))))
    _rewrite(folder / SHARD, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))


def repeat(folder: Path) -> None:
    name, tensor = next(iter(sorted(load_file(folder / SHARD).items())))
    _rewrite(folder / "model-00003-of-00003.safetensors", lambda tensors: tensors.update({name: tensor}))


def configure(**fields: object) -> Change:
    return lambda folder: published.change_json(folder / "config.json", lambda raw: raw.update(fields))


def refusal_of_worker(*arguments: str) -> str:
    """The one sentence with which a worker exits with code 2."""
    done = run_cli("worker", "--listen", "127.0.0.1:0", *arguments)
    assert (done.code, done.out) == (2, "")
    (sentence,) = (line for line in done.err.splitlines() if not line.startswith("{"))
    return str(sentence)


VOCODER = "vocoder/model.safetensors"
break_vocoder = reshape(VOCODER, "hift.conv_pre.weight", 2)


def cut_vocoder(folder: Path) -> None:
    path = folder / VOCODER
    path.write_bytes(path.read_bytes()[:-100])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole.write(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(written, tmp_path / "tiny"))


def second_shard() -> str:
    """A weight that the second shard holds."""
    names = sorted(load_file(published.SOURCE / "model.safetensors"))[1::3]
    return next(name for name in names if name.startswith("llm.") and name.endswith("proj.weight"))


UNFIT: dict[str, tuple[Change, tuple[str, ...]]] = {
    "shape": (reshape(SHARD, second_shard(), 3, 5), (SHARD, f"{second_shard()} is [3, 5] and not [")),
    "dtype": (quantise, (SHARD, "is stored as I8; only F32, F16, BF16 are read")),
    "repeated": (repeat, ("model-00003-of-00003.safetensors", "is in another file too")),
    "config of other sizes": (
        configure(intermediate_size=320),
        ("model-0000", "llm.model.layers.0.mlp.", "not [", "config.json"),
    ),
    "config without a field": (configure(hidden_size="wide"), ("config.json", "hidden_size")),
    "config of another vocabulary": (configure(vocab_size=700), ("tokenizer.json has 745 tokens",)),
    "vocoder's shape": (break_vocoder, ("vocoder/model.safetensors", "hift.conv_pre.weight is [2]")),
    "vocoder cut short": (cut_vocoder, ("vocoder/model.safetensors is not a readable safetensors file",)),
}


@pytest.mark.parametrize("unfit", UNFIT)
def test_unfit_checkpoint_is_never_read(folder: Path, unfit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, named = UNFIT[unfit]
    change(folder)
    monkeypatch.setattr(checkpoint, "_tensors", lambda files: pytest.fail("weights were read"))
    with pytest.raises(CheckpointError) as refused:
        table.load(folder, CPU, 512)
    assert all(part in str(refused.value) for part in named), str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("unfit", ["shape", "vocoder's shape"])
def test_worker_with_an_unfit_checkpoint_exits_with_code_2_and_one_sentence(folder: Path, unfit: str) -> None:
    change, named = UNFIT[unfit]
    change(folder)
    sentence = refusal_of_worker("--model", str(folder))
    assert all(part in sentence for part in named)


def test_checkpoint_over_free_memory_is_refused_before_weights_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = table.footprint(folder, CPU, 512)
    free = told.total(1)
    monkeypatch.setattr(footprint, "free_bytes", lambda device: free)
    table.load(folder, CPU, 512)(1)
    free -= 1
    monkeypatch.setattr(checkpoint, "_tensors", lambda files: pytest.fail("weights were read"))
    with pytest.raises(ConfigurationError) as refused:
        table.load(folder, CPU, 512)
    text = str(refused.value)
    assert text.startswith(f"{folder} needs {footprint.gib(told.total(1))}: ")
    assert f"{footprint.gib(free)} are free on cpu. Pass a smaller" in text
    assert all(part in text for part in told.weights)


def test_causal_model_over_memory_or_damaged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_causal.save(tmp_path / "causal")
    with monkeypatch.context() as poor:
        poor.setattr(footprint, "free_bytes", lambda device: 1000)
        with pytest.raises(ConfigurationError, match=r"causal needs .* free on cpu"):
            table.load(folder, CPU, 64)
    (folder / "model.safetensors").write_bytes(b"no safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a readable safetensors file"):
        table.load(folder, CPU, 64)


def test_damaged_vocoder_does_not_matter_without_speech(folder: Path) -> None:
    break_vocoder(folder)
    assert table.load(folder, CPU, 512, speech=SpeechOptions(no_speech=True))(1)


@pytest.mark.long
def test_worker_with_too_little_memory_for_its_slots_says_what_fits(folder: Path) -> None:
    sentence = refusal_of_worker("--model", str(folder), "--slots", "10000000")
    assert sentence.startswith("10000000 slots need ")
    assert re.search(r" are free on cpu\. Pass --slots \d+ or less, or see antiphon check-config", sentence)
