"""Folders of Moshi and PersonaPlex: both layouts give one model, and unusable ones are refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference_service.checkpoints.moshi import voices
from inference_service.checkpoints.moshi.folder import MoshiCheckpoint, load
from inference_service.checkpoints.moshi.published import Published
from inference_service.checkpoints.moshi.saved import Saved
from inference_service.models.errors import CheckpointError
from tests.inference_service.engine.support import tiny_moshi
from tests.inference_service.engine.support.tiny_moshi import CODEC_FILE, CODES, TOKENIZER_FILE, VOICES

CPU = torch.device("cpu")
WEIGHTS = "model.safetensors"


def loaded(folder: Path) -> MoshiCheckpoint:
    return load(folder, CPU, torch.float32)


@pytest.mark.parametrize("personaplex", [False, True], ids=["moshi", "personaplex"])
def test_published_folder_is_the_model_that_transformers_saves(tmp_path: Path, personaplex: bool) -> None:
    saved = loaded(tiny_moshi.save(tmp_path / "saved"))
    published = loaded(tiny_moshi.publish(tmp_path / "published", personaplex=personaplex))
    one, other = saved.model.state_dict(), published.model.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    text = "hello you née"
    assert saved.tokenizer.encode(text) == published.tokenizer.encode(text)
    assert saved.tokenizer.decode(saved.tokenizer.encode(text)) == f" {text}"
    assert published.reads_prompts == personaplex
    assert [*published.voices] == ([it.lower() for it in VOICES] if personaplex else [])


def test_silent_tokens_spell_nothing(tmp_path: Path) -> None:
    tokenizer = loaded(tiny_moshi.save(tmp_path / "saved")).tokenizer
    assert tokenizer.decode([0, 3, 1, 2]) == ""


def test_voice_as_published_is_converted_once(tmp_path: Path) -> None:
    folder = tiny_moshi.publish(tmp_path / "published", personaplex=True)
    tiny_moshi.save_voice(folder, "VARM2", ".pt")
    assert [path.name for path in voices.convert(folder)] == ["VARM2.safetensors"]
    assert [*loaded(folder).voices] == ["natf0", "natm1", "varm2"]


def test_pickled_voice_with_code_in_it_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "voices" / "X.pt"
    path.parent.mkdir()
    torch.save({"embeddings": Path("/"), "cache": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="holds more than tensors"):
        voices.convert(tmp_path)


def _another_codec(folder: Path) -> None:
    save_file({"decoder.weight": torch.zeros(2, 2)}, folder / CODEC_FILE)


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _drop(path: Path, is_dropped: Callable[[str], bool]) -> None:
    """Leave tensors out of a file."""
    kept = {name: it for name, it in load_file(path).items() if not is_dropped(name)}
    save_file(kept, path, {"format": "pt"})


def _fewer_codebooks(folder: Path) -> None:
    last = f".{CODES - 1}."
    _drop(folder / WEIGHTS, lambda name: name.startswith("linears.") and last in name)


def _fewer_quantizers(folder: Path) -> None:
    _drop(folder / CODEC_FILE, lambda name: ".rvq_rest.vq.layers.0." in name)


def _other_width(folder: Path) -> None:
    path = folder / WEIGHTS
    tensors = load_file(path)
    save_file(tensors | {"text_linear.weight": tensors["text_linear.weight"][:, :5].clone()}, path)


def _promise_terabytes(folder: Path) -> None:
    """The header names a tensor that the file does not hold."""
    shape = [1 << 20, 1 << 20]
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * shape[0] * shape[1]]}
    header = json.dumps({"text_linear.weight": entry}).encode()
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))


def _another_tokenizer(folder: Path) -> None:
    (folder / TOKENIZER_FILE).write_bytes(tiny_moshi.sentencepiece(tiny_moshi.PIECES[:300]))


def _no_voices(folder: Path) -> None:
    for path in (folder / "voices").iterdir():
        path.unlink()


def _narrow_voice(folder: Path) -> None:
    path = folder / "voices" / f"{VOICES[0]}.safetensors"
    save_file(load_file(path) | {"embeddings": torch.zeros(3, 1, 1, 5)}, path)


@pytest.mark.parametrize(
    ("spoil", "file", "message"),
    [
        (_another_codec, CODEC_FILE, "holds no codec of the kind Mimi: no decoder_transformer"),
        (_without(CODEC_FILE), CODEC_FILE, "Download the whole folder"),
        (_without(TOKENIZER_FILE), TOKENIZER_FILE, "the tokenizer of its text"),
        (_fewer_codebooks, WEIGHTS, f"has weights of {CODES - 1 + CODES} codebooks, not of {CODES}"),
        (_fewer_quantizers, CODEC_FILE, "lacks 3 tensors"),
        (_other_width, WEIGHTS, r"decoder\.lm_head\.weight has the shape \[320, 5\], not \[320, 64\]"),
        (_promise_terabytes, WEIGHTS, "is not a readable safetensors file"),
        (_another_tokenizer, TOKENIZER_FILE, "has 300 tokens; the model has 320"),
        (_no_voices, "voices", "holds no voices as safetensors"),
        (_narrow_voice, f"{VOICES[0]}.safetensors", r"embeddings must be numbers \[n, 64\]"),
        (_config(model_type="stt", depformer_dim=8), "config.json", "is of a model for 'stt'"),
        (_config(moshi_name="../x.safetensors"), "config.json", "must name a file of the folder"),
        (_config(delays=[0] * (1 + 2 * CODES)), "config.json", "has delays other than"),
    ],
    ids=lambda it: getattr(it, "__name__", None),
)
def test_unusable_published_folder_is_refused_with_its_file_before_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None], file: str, message: str
) -> None:
    monkeypatch.setattr(Published, "network", _never)
    folder = tiny_moshi.publish(tmp_path / "published", personaplex=True)
    spoil(folder)
    with pytest.raises(CheckpointError, match=message) as refused:
        loaded(folder)
    assert file in str(refused.value)
    assert "\n" not in str(refused.value)


def _never(files: object, dtype: torch.dtype) -> None:
    pytest.fail("weights were read")


@pytest.mark.parametrize("named", ["../model.safetensors", "/etc/passwd", 5], ids=str)
def test_index_that_leaves_its_folder_is_refused(tmp_path: Path, named: object) -> None:
    folder = tiny_moshi.save(tmp_path / "saved")
    (folder / WEIGHTS).rename(tmp_path / WEIGHTS)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"decoder.lm_head.weight": named}}))
    with pytest.raises(CheckpointError, match="names no files of the folder") as refused:
        loaded(folder)
    assert str(index) in str(refused.value)


def test_saved_folder_without_a_codebook_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_moshi.save(tmp_path / "saved")
    last = f"embed_tokens.{2 * CODES - 1}.weight"
    _drop(folder / WEIGHTS, lambda name: name == last)
    monkeypatch.setattr(Saved, "network", _never)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors lacks 1 tensors, first {last}"):
        loaded(folder)


def test_saved_folder_of_another_codec_is_refused(tmp_path: Path) -> None:
    folder = tiny_moshi.save(tmp_path / "saved")
    _config(audio_encoder_config={"model_type": "encodec"})(folder)
    with pytest.raises(CheckpointError, match=r"config\.json names the codec 'encodec'"):
        loaded(folder)
