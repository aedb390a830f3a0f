"""Copies between the host and a device. Every copy of a tick goes through this module.

A copy from pageable memory, and every number that Python reads from a tensor, blocks the host until the
device has done all earlier work. So the inputs of a step are packed into pinned memory and uploaded in one
asynchronous copy. The results that the host needs come back in one copy.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNED = 16
"""Alignment in bytes of each array."""

Array = NDArray[Any]


def upload(device: torch.device, *arrays: Array) -> list[Tensor]:
    """Upload arrays in one copy; return tensors of the same shapes and dtypes.

    On the CPU they share the arrays' memory.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    places, size = _places(arrays)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    _write(host.numpy(), arrays, places)
    return _views(host.to(device, non_blocking=True), arrays, places)


def download(*tensors: Tensor) -> list[Array]:
    """Download tensors, of four bytes a number, in one copy; blocks until the device is done."""
    if len(tensors) == 1 or tensors[0].device.type == "cpu":
        return [tensor.cpu().numpy() for tensor in tensors]
    return unpacked(packed(tensors).cpu(), tensors)


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """Return all numbers concatenated, int32."""
    return torch.cat([tensor.reshape(-1).view(torch.int32) for tensor in tensors])


def unpacked(cells: Tensor, like: Sequence[Tensor]) -> list[Array]:
    """Return concatenated numbers in host memory as arrays of these shapes and dtypes."""
    parts = cells.split([it.numel() for it in like])
    return [part.view(it.dtype).numpy().reshape(it.shape) for part, it in zip(parts, like, strict=True)]


def _places(arrays: Sequence[Array]) -> tuple[list[int], int]:
    """Return the start of each array, and the total length."""
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
