"""Folders as MiniCPM-o 4.5 is published, with the tiny random weights of `tests/data/minicpmo_tiny`."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from inference_service.checkpoints.minicpmo import INDEX, WHOLE

SOURCE = Path(__file__).parents[3] / "data/minicpmo_tiny"
_SMALL_FILES = ("config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json")
_CODE = {
    "configuration_minicpmo.py": {"AutoConfig": "configuration_minicpmo.MiniCPMOConfig"},
    "modeling_minicpmo.py": {"AutoModel": "modeling_minicpmo.MiniCPMO"},
    "processing_minicpmo.py": {"AutoProcessor": "processing_minicpmo.MiniCPMOProcessor"},
    "tokenization_minicpmo_fast.py": {
        "AutoTokenizer": ["tokenization_minicpmo_fast.MiniCPMOTokenizerFast", None]
    },
}
"""The published remote code, and who it offers itself to."""


def write(folder: Path, *, shards: int = 3) -> Path:
    """Writes a checkpoint into `folder`: its weights in so many shards, or with 0 in one file and no index.

    Its code leaves a file `code_was_run` behind and fails, should anyone import it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in _SMALL_FILES:
        shutil.copyfile(SOURCE / name, folder / name)
    for name, offered in _CODE.items():
        trap = f"open({str(folder / 'code_was_run')!r}, 'w').close()\nraise SystemExit('remote code')\n"
        (folder / name).write_text(trap)
        for config in ("config.json", "tokenizer_config.json", "preprocessor_config.json"):
            change_json(
                folder / config, lambda raw, offered=offered: raw.setdefault("auto_map", {}).update(offered)
            )
    write_weights(folder, load_file(SOURCE / WHOLE), shards=shards)
    return folder


def write_weights(folder: Path, tensors: dict[str, Tensor], *, shards: int) -> None:
    """Replaces the weights in a folder."""
    for path in [*folder.glob("*.safetensors"), *folder.glob(INDEX)]:
        path.unlink()
    if not shards:
        save_file(tensors, folder / WHOLE, metadata={"format": "pt"})
        return
    names = sorted(tensors)
    places = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}  # those that belong together lie apart
        save_file(part, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}))


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Writes the weights anew, as `change` leaves them."""
    shards = sorted(folder.glob("*.safetensors"))
    tensors = {name: tensor for path in shards for name, tensor in load_file(path).items()}
    change(tensors)
    write_weights(folder, tensors, shards=len(shards) if (folder / INDEX).exists() else 0)


def change_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Writes a JSON object anew, as `change` leaves it."""
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))
