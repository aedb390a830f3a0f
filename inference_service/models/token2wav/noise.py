"""Normal noise, the same for every stream and in every process.

The published package draws its tables without a seed when it is constructed, so two processes differ.
"""

import numpy as np
import torch
from torch import Tensor, nn

from inference_service.device.transfer import upload
from inference_service.models.token2wav.config import MELS, RATE_HZ

_SEED = 20_240_507
_FLOW_FRAMES = 30_000
_ROWS = 10 * RATE_HZ + 11
_STRIDE = 28_807


def flow_noise() -> Tensor:
    """[80, 30000], from which a chunk takes the frames that its place in the caches names."""
    return torch.randn(MELS, _FLOW_FRAMES, generator=torch.Generator().manual_seed(_SEED))


class SourceNoise(nn.Module):
    """Noise of the vocoder's excitation: a table that is read round and round."""

    table: Tensor

    def __init__(self, table: Tensor, stride: int) -> None:
        """`table` [rows, harmonics + 1]; chunk k of a stream begins at row `k * stride`."""
        super().__init__()
        self.register_buffer("table", table, persistent=False)
        self._stride = stride

    @classmethod
    def drawn(cls, harmonics: int) -> "SourceNoise":
        """Ten seconds of it."""
        generator = torch.Generator().manual_seed(_SEED)
        return cls(torch.randn(_ROWS, harmonics + 1, generator=generator), _STRIDE)

    def chunk_begins(self, chunks: list[int]) -> Tensor:
        """Return where chunks of these numbers begin to read, int64 [batch] on the device."""
        return self.begins([self._stride * chunk for chunk in chunks])

    def begins(self, firsts: list[int]) -> Tensor:
        """Return where streams at these samples read, int64 [batch] on the device."""
        (begins,) = upload(self.table.device, np.array([first % len(self.table) for first in firsts]))
        return begins

    def read(self, begins: Tensor, samples: int) -> Tensor:
        """[batch, samples, harmonics + 1] from there on."""
        rows = begins[:, None] + torch.arange(samples, device=self.table.device)
        return self.table[rows % len(self.table)]
