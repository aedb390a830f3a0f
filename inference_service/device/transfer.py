"""Copies between the host and a device. All that a tick needs of either goes through here.

A copy from ordinary memory, and every number that Python asks of a tensor, stops the host until the device
has done all that it was asked before. So what a step needs is written side by side into pinned memory and
goes up in one copy that nobody waits for; what the host must know comes back in one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNED = 16
"""Bytes at multiples of which each array begins."""

Array = NDArray[Any]


def upload(device: torch.device, *arrays: Array) -> list[Tensor]:
    """These arrays as tensors of the same shapes and dtypes on the device, in one copy.

    On the CPU they share the arrays' memory.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    places, size = _places(arrays)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    _write(host.numpy(), arrays, places)
    return _views(host.to(device, non_blocking=True), arrays, places)


def download(*tensors: Tensor) -> list[Array]:
    """These tensors, of four bytes a number, in one copy; whoever asks waits for the device."""
    if len(tensors) == 1 or tensors[0].device.type == "cpu":
        return [tensor.cpu().numpy() for tensor in tensors]
    return unpacked(packed(tensors).cpu(), tensors)


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """Return all numbers behind one another, int32."""
    return torch.cat([tensor.reshape(-1).view(torch.int32) for tensor in tensors])


def unpacked(cells: Tensor, like: Sequence[Tensor]) -> list[Array]:
    """Return numbers that lie behind one another in the host's memory, as arrays of these shapes and
    dtypes."""
    parts = cells.split([it.numel() for it in like])
    return [part.view(it.dtype).numpy().reshape(it.shape) for part, it in zip(parts, like, strict=True)]


def _places(arrays: Sequence[Array]) -> tuple[list[int], int]:
    """Return where each array begins, and how long all of them are."""
    ends = np.cumsum([-(-array.nbytes // _ALIGNED) * _ALIGNED for array in arrays]).tolist()
    return [0, *ends[:-1]], ends[-1]


def _write(host: NDArray[np.uint8], arrays: Sequence[Array], places: Sequence[int]) -> None:
    for array, begin in zip(arrays, places, strict=True):
        host[begin : begin + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _views(flat: Tensor, arrays: Sequence[Array], places: Sequence[int]) -> list[Tensor]:
    return [
        flat[begin : begin + array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for array, begin in zip(arrays, places, strict=True)
    ]
