"""Conversion of the published vocoder to the worker's format, on the user's machine."""

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from inference_service.checkpoints.published_vocoder import (
    FLOW,
    FLOW_YAML,
    VOCODER,
    folded,
    read_config,
    read_weights,
)
from inference_service.checkpoints.vocoder import (
    CONFIG,
    WEIGHTS,
    as_json,
    check_sizes,
    check_tensors,
    wanted_tensors,
)
from inference_service.checkpoints.voices import SPEAKER_ENCODER, TOKENIZER, VoiceReader, save_voice
from inference_service.models.errors import CheckpointError
from inference_service.models.token2wav.config import Token2WavConfig

_FILES = (FLOW_YAML, FLOW, VOCODER, TOKENIZER, SPEAKER_ENCODER)
_VOICE_ID = re.compile(r"[a-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Recording:
    """A recording of a speaker: float32 [samples] in [-1, 1], mono."""

    pcm: NDArray[np.float32]
    rate_hz: int


def convert(source: Path, target: Path, voices: Mapping[str, Recording]) -> Token2WavConfig:
    """Write the folder `target` from the published files in `source`, with `voices` by their ids.

    Pickles are read without running code, and YAML as data. `target` is written atomically. Raises
    `CheckpointError`, or `VoiceError` for a recording.
    """
    if target.exists():
        raise CheckpointError(f"{target} exists. Remove it, or name another folder.")
    for name in voices:
        if not _VOICE_ID.fullmatch(name):
            raise CheckpointError(f"{name!r} is no id of a voice: 1 to 64 of a-z, 0-9, _ and - are expected.")
    config, tensors = _read(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        part = Path(scratch) / target.name
        part.mkdir()
        save_file(tensors, part / WEIGHTS)
        (part / CONFIG).write_text(json.dumps(as_json(config), indent=2) + "\n")
        for name in (TOKENIZER, SPEAKER_ENCODER):
            shutil.copyfile(source / name, part / name)
        if voices:
            reader = VoiceReader(part, config)
            for name, recording in voices.items():
                save_voice(part, name, reader.read(recording.pcm, recording.rate_hz))
        part.rename(target)
    return config


def _read(source: Path) -> tuple[Token2WavConfig, dict[str, Tensor]]:
    if not source.is_dir():
        raise CheckpointError(f"{source} is no folder. Give the one with {FLOW} in it.")
    missing = [name for name in _FILES if not (source / name).is_file()]
    if missing:
        raise CheckpointError(f"{source} has no {', '.join(missing)}. Download the whole folder.")
    vocoder = folded(read_weights(source / VOCODER))
    config = read_config(source, vocoder)
    check_sizes(config, source)
    tensors = {f"flow.{name}": tensor for name, tensor in read_weights(source / FLOW).items()}
    tensors |= {f"hift.{name}": tensor for name, tensor in vocoder.items()}
    wanted = wanted_tensors(config)
    check_tensors(wanted, tensors, source)
    return config, {name: tensor.to(wanted[name].dtype).contiguous() for name, tensor in tensors.items()}
