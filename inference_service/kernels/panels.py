"""Weights of linear layers in panels, the order in which `linear` reads them while it multiplies."""

import torch
from torch import Tensor

from inference_service.kernels.selection import usable
from inference_service.kernels.tensors import address

WIDE = 16
"""Outputs of a panel."""


def fit(dtype: torch.dtype) -> bool:
    """Return whether products of `dtype` use panels here: they need one thread."""
    return dtype is torch.float32 and torch.get_num_threads() == 1 and usable("linear")


class Panels:
    """The weights [out, in] of a linear layer on the CPU and its bias [out], in float32.

    Each output is summed in one order, so that the result of a row is the same bit for bit in any batch.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Copy weights of any dtype and device.

        Raises `ValueError` unless they are [out, in] with an input, and the bias, if there is one, is [out].
        """
        from inference_service.kernels import linear

        if weight.ndim != 2 or not weight.shape[1]:
            raise ValueError(f"Weights are [outputs, inputs], not {list(weight.shape)}.")
        self._out, self._in = weight.shape
        self._multiply = linear.multiply
        weight = weight.detach().to("cpu", torch.float32).contiguous()
        self._panels = torch.empty(-(-self._out // WIDE), self._in, WIDE, dtype=torch.float32, device="cpu")
        shape = self._out, self._in
        linear.pack(address(weight, torch.float32, shape), self._panels.data_ptr(), *shape)
        self._bias = None if bias is None else bias.detach().to("cpu", torch.float32).contiguous()
        if self._bias is not None:
            address(self._bias, torch.float32, (self._out,))

    def product(self, x: Tensor) -> Tensor:
        """Return [..., out] for `x` [..., in]. Raises `ValueError` for any other width or dtype."""
        if x.dtype is not torch.float32 or not x.ndim or x.shape[-1] != self._in or not x.is_cpu:
            given = f"{list(x.shape)} in {x.dtype} on {x.device}"
            raise ValueError(f"A layer takes [..., {self._in}] in float32 on the CPU, not {given}.")
        x = x.contiguous()
        y = torch.empty(*x.shape[:-1], self._out, dtype=torch.float32, device="cpu")
        bias = 0 if self._bias is None else self._bias.data_ptr()
        self._multiply(
            x.data_ptr(), self._panels.data_ptr(), bias, y.data_ptr(),
            x.numel() // self._in, self._out, self._in,
        )  # fmt: skip
        return y

    def weight(self) -> Tensor:
        """Return the weights in the usual order."""
        return self._panels.transpose(1, 2).reshape(-1, self._in)[: self._out].clone()
