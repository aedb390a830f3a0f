"""The tensors of a checkpoint: published names and shapes, with random values.

The values of a tensor depend only on its name and shape, so that every run writes the same values.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor

from benchmarks.full_size.sizes import TINY_FOLDER, Size
from inference_service.checkpoints.vocoder import wanted_tensors
from inference_service.models.minicpmo.model import MiniCPMO
from inference_service.models.tokenizer import Tokenizer

PIECE: Final = 1 << 22
"""The number of values that are drawn at once."""
_SPREAD: Final = 0.02
_HEAD: Final = "tts.head_code.0.weight"
_NORM: Final = "tts.head_code.0.parametrizations.weight.original0"
_DIRECTION: Final = "tts.head_code.0.parametrizations.weight.original1"
_LANGUAGE_HEAD: Final = "llm.lm_head.weight"
_UNUSED_ROWS: Final = 32_000


@dataclass(frozen=True)
class Stored:
    """A tensor of a file, without its values."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    rows: frozenset[int] | None = None
    """The rows with random values; all other rows are zeros. None means all rows."""

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return prod(self.shape) * self.dtype.itemsize

    def pieces(self) -> Iterator[Tensor]:
        """Yield its values in order, in flat tensors of about `PIECE` each. Norms are ones, biases zeros."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.name} {self.shape}".encode()))
        width = prod(self.shape[1:])
        step = max(1, PIECE // width) * width
        for begin in range(0, prod(self.shape), step):
            count = min(step, prod(self.shape) - begin)
            if len(self.shape) < 2 or self.name == _NORM:
                fill = 0.0 if self.name.endswith("bias") else 1.0
                yield torch.full((count,), fill, dtype=self.dtype)
                continue
            numbers = torch.empty(count).normal_(std=_SPREAD, generator=generator)
            if self.rows is not None:
                held = [row in self.rows for row in range(begin // width, (begin + count) // width)]
                numbers.view(-1, width)[~torch.tensor(held)] = 0
            yield numbers.to(self.dtype)


def model_tensors(size: Size, dtype: torch.dtype = torch.bfloat16) -> list[Stored]:
    """Return the tensors of the model as published: with a weight norm, and with the unused tensors.

    The language model's head has values only for ordinary text. So the likeliest token is text, and no answer
    ends before its limit.
    """
    config = size.config
    hidden, width = config.language.hidden_size, config.speech.backbone.hidden_size
    found = []
    for name, tensor in MiniCPMO.hollow(config, speech=True).state_dict().items():
        shape = tuple(tensor.shape)
        if name == _HEAD:
            found += [Stored(_NORM, (shape[0], 1), dtype), Stored(_DIRECTION, shape, dtype)]
        else:
            found.append(Stored(name, shape, dtype, _text() if name == _LANGUAGE_HEAD else None))
    unused = {
        "model.embed_tokens.weight": (_UNUSED_ROWS, width),
        "projector_spk.linear1.weight": (width, hidden),
        "projector_spk.linear1.bias": (width,),
        "projector_spk.linear2.weight": (width, width),
        "projector_spk.linear2.bias": (width,),
    }
    return found + [Stored(f"tts.{name}", shape, dtype) for name, shape in unused.items()]


def vocoder_tensors(size: Size) -> list[Stored]:
    """Return the tensors of the converted vocoder."""
    wanted = wanted_tensors(size.vocoder)
    return [Stored(name, tuple(tensor.shape), tensor.dtype) for name, tensor in wanted.items()]


def _text() -> frozenset[int]:
    """Return the ids of tokens with only letters, digits and blanks."""
    tokenizer = Tokenizer.load(TINY_FOLDER).plain
    decoded = ((token, tokenizer.decode([token])) for token in range(640))
    return frozenset(token for token, text in decoded if text.isascii() and text.replace(" ", "").isalnum())
