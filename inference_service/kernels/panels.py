"""Weights of linear layers in an order of our own, in which `linear` reads them while it multiplies."""

import torch
from torch import Tensor

try:
    from inference_service.kernels import linear
except ImportError:
    HAS_PRODUCT = False
else:
    HAS_PRODUCT = True
"""Not where there was no compiler when this package was installed."""

WIDE = 16
"""Outputs of a panel."""


def fit(dtype: torch.dtype) -> bool:
    """Whether rows of `dtype` are multiplied with panels here: the product has one thread."""
    return HAS_PRODUCT and dtype is torch.float32 and torch.get_num_threads() == 1


class Panels:
    """The weights [out, in] of a linear layer on the CPU and its bias [out], in float32.

    Each output is one sum in one order: a row becomes the same bit for bit among any number of others.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._out, self._in = weight.shape
        weight = weight.detach().to("cpu", torch.float32).contiguous()
        self._panels = torch.empty(-(-self._out // WIDE), self._in, WIDE, dtype=torch.float32, device="cpu")
        linear.pack(weight.data_ptr(), self._panels.data_ptr(), self._out, self._in)
        self._bias = None if bias is None else bias.detach().to("cpu", torch.float32).contiguous()

    def product(self, x: Tensor) -> Tensor:
        """`x` [..., in] becomes [..., out]. Raises `ValueError` for any other width or dtype."""
        if x.dtype is not torch.float32 or x.shape[-1] != self._in or not x.is_cpu:
            given = f"{list(x.shape)} in {x.dtype} on {x.device}"
            raise ValueError(f"A layer takes [..., {self._in}] in float32 on the CPU, not {given}.")
        x = x.contiguous()
        y = torch.empty(*x.shape[:-1], self._out, dtype=torch.float32, device="cpu")
        bias = 0 if self._bias is None else self._bias.data_ptr()
        linear.multiply(
            x.data_ptr(), self._panels.data_ptr(), bias, y.data_ptr(),
            x.numel() // self._in, self._out, self._in,
        )  # fmt: skip
        return y

    def weight(self) -> Tensor:
        """The weights in the usual order."""
        return self._panels.transpose(1, 2).reshape(-1, self._in)[: self._out].clone()
