"""MiniCPM-o checkpoints on disk, in the published layout.

`config.json`, `preprocessor_config.json`, `tokenizer.json` and `tokenizer_config.json`, and the weights under
their published names: in shards that `model.safetensors.index.json` lists, or all in `model.safetensors`.
Never pickle, never remote code: the Python files of a published folder are not read.
"""

import mmap
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from tqdm import tqdm

from inference_service.checkpoints.files import read_json
from inference_service.checkpoints.hub import model_name
from inference_service.kernels.packed_linear import pack_linears
from inference_service.models.errors import CheckpointError, listed
from inference_service.models.minicpmo.config import MODEL_TYPE, MiniCPMOConfig, parse_config
from inference_service.models.minicpmo.model import MiniCPMO
from inference_service.models.tokenizer import Tokenizer

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
_FILES = ("config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_UNUSED = ("tts.model.embed_tokens.", "tts.projector_spk.")
"""Prefixes of published weights that no code uses."""
_NORM = "tts.head_code.0.parametrizations.weight.original0"
_DIRECTION = "tts.head_code.0.parametrizations.weight.original1"
_HEAD = "tts.head_code.0.weight"
_DTYPES = ("F32", "F16", "BF16")
"""Data types of stored weights, as safetensors names them."""


@dataclass(frozen=True)
class MiniCPMOCheckpoint:
    """A model ready to run, with the settings of its folder."""

    name: str
    model: MiniCPMO
    tokenizer: Tokenizer
    config: MiniCPMOConfig
    bad_token_ids: tuple[int, ...]
    """Ids that are never sampled in a conversation."""


def read_minicpmo(folder: Path) -> MiniCPMOConfig:
    """Return the configuration only. Raises `CheckpointError`."""
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{folder} lacks {listed(missing)}. Download the whole checkpoint into it.")
    raw = read_json(folder, "config.json")
    kind = raw.get("model_type")
    if kind != MODEL_TYPE:
        raise CheckpointError(f"{folder / 'config.json'}: model_type must be {MODEL_TYPE!r}, not {kind!r}.")
    return parse_config(raw, read_json(folder, "preprocessor_config.json"))


def load_minicpmo(
    folder: Path, device: torch.device, dtype: torch.dtype, *, speech: bool = True
) -> MiniCPMOCheckpoint:
    """Return the checkpoint in `folder`, on `device`, its weights in `dtype`; without `speech` it has no
    voice.

    Shows its progress on stderr if that is a terminal. Raises `CheckpointError`.
    """
    config = read_minicpmo(folder)
    vocabulary = config.language.vocab_size
    tokenizer = Tokenizer.load(folder)
    if tokenizer.size > vocabulary:
        raise CheckpointError(
            f"tokenizer.json has {tokenizer.size} tokens; config.json's vocab_size is only {vocabulary}."
        )
    bad_token_ids = _bad_token_ids(folder, vocabulary)
    files = weight_files(folder)
    model = MiniCPMO.hollow(config, speech=speech)
    _check(model, files)
    _fill(model, files, device, dtype)
    model = pack_linears(model.to(device).eval())
    return MiniCPMOCheckpoint(model_name(folder), model, tokenizer, config, bad_token_ids)


def _bad_token_ids(folder: Path, vocabulary: int) -> tuple[int, ...]:
    ids = read_json(folder, "tokenizer_config.json").get("bad_token_ids", [])
    if not isinstance(ids, list) or not all(isinstance(it, int) and 0 <= it < vocabulary for it in ids):
        raise CheckpointError(
            f"tokenizer_config.json: bad_token_ids must be a list of ids from 0 to {vocabulary - 1}."
        )
    return tuple(ids)


def weight_files(folder: Path) -> list[Path]:
    """Return the files of the weights. Raises `CheckpointError` if any is missing."""
    if not (folder / INDEX).is_file():
        if not (folder / WHOLE).is_file():
            raise CheckpointError(_no_weights(folder))
        return [folder / WHOLE]
    places = read_json(folder, INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(it, str) for it in places.values()):
        raise CheckpointError(f"{folder / INDEX} must hold a weight_map of tensors to file names.")
    names = sorted(set(places.values()))
    strange = [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]
    if strange:
        raise CheckpointError(f"{folder / INDEX} names {strange[0]!r}, which is no *.safetensors beside it.")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of the {len(names)} files of {INDEX} ({listed(missing)}). "
            "Download them."
        )
    return [folder / name for name in names]


def _no_weights(folder: Path) -> str:
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if not pickles:
        return (
            f"{folder} has neither {WHOLE} nor {INDEX}. Download the checkpoint's safetensors files into it."
        )
    return (
        f"{folder} has its weights as pickles only ({listed(pickles)}), which can run any code and are not "
        "read. Download the checkpoint's safetensors files, or write them with safetensors.torch.save_file "
        "where you trust the pickles."
    )


def _check(model: MiniCPMO, files: list[Path]) -> None:
    """Compare names, shapes and dtypes in the headers of files with the model's; read no weights.

    Raises `CheckpointError` naming the file and the tensor.
    """
    wanted = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    unused = _UNUSED if model.tts is not None else ("tts.",)
    if model.tts is not None:
        wanted |= {_NORM: [wanted[_HEAD][0], 1], _DIRECTION: wanted[_HEAD]}
    found: set[str] = set()
    extra = []
    for path in files:
        for name, shape, dtype in _headers(path):
            if name.startswith(unused):
                continue
            if name not in wanted:
                extra.append(name)
            elif shape != wanted[name]:
                raise CheckpointError(
                    f"{path}: {name} is {shape} and not {wanted[name]}, the size that config.json states. "
                    "Take both from one checkpoint."
                )
            elif dtype not in _DTYPES:
                raise CheckpointError(
                    f"{path}: {name} is stored as {dtype}; only {listed(_DTYPES)} are read. Take a "
                    "checkpoint that is not quantised."
                )
            elif name in found:
                raise CheckpointError(
                    f"{path}: {name} is in another file too. Download the checkpoint again."
                )
            found.add(name)
    if {_NORM, _DIRECTION} <= found:
        found.add(_HEAD)
    missing = [name for name in wanted if name not in found | {_NORM, _DIRECTION}]
    problems = [f"lack {len(missing)} tensors that the model needs ({listed(missing)})"] if missing else []
    if extra:
        problems.append(f"have {len(extra)} that it has no place for ({listed(sorted(extra))})")
    if problems:
        raise CheckpointError(
            f"The weights in {files[0].parent} {' and '.join(problems)}. Is this a whole MiniCPM-o 4.5?"
        )


def _headers(path: Path) -> Iterator[tuple[str, list[int], str]]:
    """Yield name, shape and stored dtype of each tensor in a file."""
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            part = file.get_slice(name)
            yield name, list(part.get_shape()), str(part.get_dtype())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file, whose tensors are mapped into memory. Raises `CheckpointError`."""
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (OSError, SafetensorError):
        raise CheckpointError(f"{path} is not a readable safetensors file. Download it again.") from None


def _fill(model: MiniCPMO, files: list[Path], device: torch.device, dtype: torch.dtype) -> None:
    """Assign every tensor, one by one, so that the weights are in memory only once.

    On the CPU, weights that are stored in `dtype` stay mapped from their files. They are read here, so that
    no unit waits for the disk.
    """
    wanted = set(model.state_dict())
    found: dict[str, Tensor] = {}
    for name, tensor in _folded(_tensors(files)):
        if name in wanted:
            found[name] = tensor.to(device, dtype)
            if found[name] is tensor:
                tensor.flatten().view(torch.uint8)[:: mmap.PAGESIZE].sum()
    model.load_state_dict(found, assign=True)


def _tensors(files: list[Path]) -> Iterator[tuple[str, Tensor]]:
    total = sum(path.stat().st_size for path in files)
    with tqdm(total=total, unit="B", unit_scale=True, desc="weights", disable=not sys.stderr.isatty()) as bar:
        for path in files:
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118 - it is no mapping
                    tensor = file.get_tensor(name)
                    yield name, tensor
                    bar.update(tensor.nbytes)


def _folded(tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors, with each pair of weight norm tensors replaced by its matrix."""
    norm: dict[str, Tensor] = {}
    for name, tensor in tensors:
        if name not in (_NORM, _DIRECTION):
            yield name, tensor
            continue
        norm[name] = tensor.float()
        if len(norm) == 2:
            yield _HEAD, _weight(norm)


def _weight(norm: Mapping[str, Tensor]) -> Tensor:
    direction = norm[_DIRECTION]
    weight: Tensor = norm[_NORM] * direction / direction.norm(dim=1, keepdim=True)
    return weight
