"""The voices of PersonaPlex: prompts at the beginning of a conversation that set its voice.

A voice is published as a pickle of two tensors, which the worker does not read. `python -m
inference_service.checkpoints.moshi.voices FOLDER` writes each `voices/NAME.pt` again as safetensors.
"""

import argparse
import pickle
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from inference_service.models.errors import CheckpointError

FOLDER: Final = "voices"
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PARTS: Final = {"embeddings", "cache"}


@dataclass(frozen=True)
class VoicePrompt:
    """A voice in the form of the temporal transformer's input."""

    rows: Tensor
    """Embeddings [n, hidden] of all its rows except the last."""
    last: tuple[int, ...]
    """The tokens of the last row."""
    late: tuple[int, ...]
    """The tokens of the row after it; only the codes that are delayed by one row are given."""


def read_voices(folder: Path, hidden: int, tokens: int, vocabulary: int) -> Mapping[str, VoicePrompt]:
    """Return the voices in `folder` by name in lower case, for rows of `tokens` tokens below `vocabulary`.

    Raises `CheckpointError` if there is no voice, or one cannot be used.
    """
    where = folder / FOLDER
    paths = sorted(where.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(
            f"{where} holds no voices as safetensors. Unpack voices.tgz in {folder}, then run "
            f"python -m inference_service.checkpoints.moshi.voices {folder}."
        )
    return {path.stem.lower(): _read(path, hidden, tokens, vocabulary) for path in paths}


def _read(path: Path, hidden: int, tokens: int, vocabulary: int) -> VoicePrompt:
    if not _ID.fullmatch(path.stem):
        raise CheckpointError(f"{path}: {path.stem!r} is no id of a voice: A-Z, a-z, 0-9, _ and -.")
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError):
        raise CheckpointError(f"{path} is not a readable safetensors file.") from None
    if tensors.keys() != _PARTS:
        raise CheckpointError(f"{path} must hold embeddings and cache, not {', '.join(sorted(tensors))}.")
    rows, cache = tensors["embeddings"].squeeze(), tensors["cache"].squeeze()
    if rows.dim() != 2 or rows.shape[1] != hidden or not rows.isfinite().all():
        raise CheckpointError(f"{path}: embeddings must be numbers [n, {hidden}], not {[*rows.shape]}.")
    if cache.dim() != 2 or len(cache) != tokens or cache.shape[1] < 2 or cache.is_floating_point():
        raise CheckpointError(f"{path}: cache must be ids [{tokens}, rows], not {[*cache.shape]}.")
    at = len(rows)
    last, late = (cache[:, place % cache.shape[1]] for place in (at, at + 1))
    if not all(0 <= int(it) <= vocabulary for it in last):
        raise CheckpointError(f"{path}: cache holds ids that this model does not have.")
    return VoicePrompt(rows, tuple(last.tolist()), tuple(late.tolist()))


def convert(folder: Path) -> list[Path]:
    """Write every published voice in `folder` as safetensors; return the new files.

    Pickles are read with PyTorch's reader, which runs no code. Raises `CheckpointError`.
    """
    where = folder / FOLDER
    sources = sorted(where.glob("*.pt"))
    if not sources:
        raise CheckpointError(f"{where} holds no voices (*.pt). Unpack voices.tgz in {folder}.")
    written = []
    for source in sources:
        try:
            state = torch.load(source, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            raise CheckpointError(
                f"{source} holds more than tensors, or is damaged. It was not run."
            ) from None
        except (OSError, RuntimeError, EOFError, ValueError) as error:
            raise CheckpointError(f"{source} is not a readable .pt file: {error}") from None
        if not isinstance(state, dict) or state.keys() != _PARTS:
            raise CheckpointError(f"{source} must hold embeddings and cache and nothing else.")
        target = source.with_suffix(".safetensors")
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, target)
        written.append(target)
    return written


def main() -> int:
    """Convert the voices of the folder on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the unpacked checkpoint of PersonaPlex")
    try:
        written = convert(parser.parse_args().folder)
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(written)} voices written to {written[0].parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
