"""Checks of tensors before a kernel gets their addresses."""

import torch
from torch import Tensor


def address(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    """Return the address of a contiguous CPU tensor of this dtype and shape.

    Raises `TypeError` for another dtype or device, `ValueError` for another shape or strides that are not
    contiguous.
    """
    if tensor.dtype is not dtype or not tensor.is_cpu:
        raise TypeError(f"A kernel takes {dtype} on the CPU, not {tensor.dtype} on {tensor.device}.")
    if tensor.shape != shape:
        raise ValueError(f"A kernel takes a tensor of shape {list(shape)}, not {list(tensor.shape)}.")
    if not tensor.is_contiguous():
        raise ValueError(
            f"A kernel takes a contiguous tensor, not strides {tensor.stride()} for {list(shape)}."
        )
    return tensor.data_ptr()
