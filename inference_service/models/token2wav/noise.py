"""Normal noise, equal for every stream and in every process.

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
    """Return noise [80, 30000], from which a chunk takes the frames of its place in the caches."""
    return torch.randn(MELS, _FLOW_FRAMES, generator=torch.Generator().manual_seed(_SEED))


class SourceNoise(nn.Module):
    """Noise of the vocoder's excitation: a table that is read cyclically."""

    table: Tensor

    def __init__(self, table: Tensor, stride: int) -> None:
        """Wrap `table` [rows, harmonics + 1]; chunk k of a stream begins at row `k * stride`."""
        super().__init__()
        self.register_buffer("table", table, persistent=False)
        self._stride = stride

    @classmethod
    def drawn(cls, harmonics: int) -> "SourceNoise":
        """Return ten seconds of noise."""
        generator = torch.Generator().manual_seed(_SEED)
        return cls(torch.randn(_ROWS, harmonics + 1, generator=generator), _STRIDE)

    def chunk_begins(self, chunks: list[int]) -> Tensor:
        """Return the first row of each of these chunks, int64 [batch] on the device."""
        return self.begins([self._stride * chunk for chunk in chunks])

    def begins(self, firsts: list[int]) -> Tensor:
        """Return the row of each stream at these samples, int64 [batch] on the device."""
        (begins,) = upload(self.table.device, np.array([first % len(self.table) for first in firsts]))
        return begins

    def read(self, begins: Tensor, samples: int) -> Tensor:
        """Return noise [batch, samples, harmonics + 1] from these rows on."""
        rows = begins[:, None] + torch.arange(samples, device=self.table.device)
        return self.table[rows % len(self.table)]
