"""A complete checkpoint folder: configuration, tokenizer, weights in shards, converted vocoder, voice."""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from tqdm import tqdm

from benchmarks.full_size.shards import file_bytes, is_whole, shards, write
from benchmarks.full_size.sizes import SMALL_FILES, TINY_FOLDER, Size
from benchmarks.full_size.tensors import Stored, model_tensors, vocoder_tensors
from inference_service.checkpoints.minicpmo import INDEX
from inference_service.checkpoints.vocoder import CONFIG, WEIGHTS, as_json
from inference_service.checkpoints.voices import DEFAULT_VOICE, save_voice
from inference_service.families.memory.footprint import gib
from inference_service.families.minicpmo_voice import FOLDER
from inference_service.models.token2wav.config import FRAMES_PER_TOKEN, MELS, Token2WavConfig
from inference_service.models.token2wav.flow import VoicePrompt

SLICES_AT_ONCE: Final = 4
"""The batch size of the vision encoder: a CPU takes minutes for the 16 of the published configuration.

`check-config` reserves memory for this number.
"""
_SPARE: Final = 64 << 20
"""Bytes to leave free on the disk."""
_VOICE_TOKENS: Final = 50
_SEED: Final = 1


class FolderRefused(Exception):
    """The folder cannot be written; the message says why and what to do."""


@dataclass(frozen=True)
class Written:
    """The result of `write_folder`."""

    nbytes: int
    """Bytes of all weight files."""
    kept: int
    """Weight files that already existed, complete."""
    files: int


def write_folder(folder: Path, size: Size, dtype: torch.dtype = torch.bfloat16) -> Written:
    """Write a checkpoint of random weights into `folder`, or the missing files of one of the same size.

    Raises `FolderRefused` if the folder holds something else, or if the disk has too little free space.
    """
    own = {"torch_dtype": str(dtype).removeprefix("torch."), "vision_batch_size": SLICES_AT_ONCE}
    config = json.dumps(size.raw | own, indent=1)
    if folder.exists() and any(folder.iterdir()):
        there = folder / "config.json"
        if not there.is_file() or there.read_text() != config:
            raise FolderRefused(f"{folder} holds something else. Name a new folder, or remove this one.")
    files = _files(folder, size, dtype)
    total = sum(file_bytes(tensors) for tensors in files.values())
    with tqdm(
        total=total, unit="B", unit_scale=True, desc=str(folder), disable=not sys.stderr.isatty()
    ) as bar:
        missing = {path: it for path, it in files.items() if not is_whole(path, it, bar.update)}
        _require_room(folder, sum(map(file_bytes, missing.values())))
        for made in (folder, folder / FOLDER):
            made.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(config)
        _write_small_files(folder, size, files)
        for path, tensors in missing.items():
            write(path, tensors, bar.update)
    return Written(total, len(files) - len(missing), len(files))


def _files(folder: Path, size: Size, dtype: torch.dtype) -> dict[Path, list[Stored]]:
    """Return the tensors of each file."""
    groups = shards(model_tensors(size, dtype), size.shard_bytes)
    files = {
        folder / f"model-{number:05}-of-{len(groups):05}.safetensors": group
        for number, group in enumerate(groups, start=1)
    }
    return files | {folder / FOLDER / WEIGHTS: vocoder_tensors(size)}


def _require_room(folder: Path, needed: int) -> None:
    """Raise `FolderRefused` unless the disk has `needed` and `_SPARE` bytes free."""
    if not needed:
        return
    existing = next(it for it in (folder, *folder.absolute().parents) if it.exists())
    free = shutil.disk_usage(existing).free
    unfinished = sum(it.stat().st_size for it in folder.glob("**/*.part")) if folder.exists() else 0
    if free + unfinished < needed + _SPARE:
        raise FolderRefused(
            f"{gib(needed + _SPARE)} are needed for {folder}; {gib(free + unfinished)} are free there. Name "
            "a folder on a larger disk, or a smaller --size."
        )


def _write_small_files(folder: Path, size: Size, files: dict[Path, list[Stored]]) -> None:
    for name in SMALL_FILES:
        shutil.copyfile(TINY_FOLDER / name, folder / name)
    (folder / "preprocessor_config.json").write_text(json.dumps(size.preprocessor, indent=1))
    own = {path: it for path, it in files.items() if path.parent == folder}
    index = {
        "metadata": {"total_size": sum(it.nbytes for tensors in own.values() for it in tensors)},
        "weight_map": {it.name: path.name for path, tensors in own.items() for it in tensors},
    }
    (folder / INDEX).write_text(json.dumps(index, indent=1))
    (folder / FOLDER / CONFIG).write_text(json.dumps(as_json(size.vocoder), indent=1))
    save_voice(folder / FOLDER, DEFAULT_VOICE, voice(size.vocoder))


def voice(vocoder: Token2WavConfig) -> VoicePrompt:
    """Return a random voice of two seconds."""
    generator = torch.Generator().manual_seed(_SEED)
    mel = torch.randn(FRAMES_PER_TOKEN * _VOICE_TOKENS, MELS, generator=generator)
    speaker = torch.randn(vocoder.speaker, generator=generator)
    return VoicePrompt(torch.arange(_VOICE_TOKENS), mel, speaker)
