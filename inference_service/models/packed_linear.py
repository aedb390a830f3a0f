"""Linear layers for the CPU, whose weights lie in memory in the order in which oneDNN's kernels read them.

In float32 that takes less than half the time of `nn.Linear` from four rows on, in bfloat16 half of it for
one row. oneDNN makes a kernel for each number of rows that it meets and keeps it, half a MiB each. So rows
come in a few `SIZES` only: more of them are cut up, and the last piece is filled with zeros.
"""

from collections import Counter
from functools import cache, lru_cache
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)

SIZES = (1, 4, 8, 16, 24, 32, 40, 48, 56, 64, 128, 256)
"""Numbers of rows that there are kernels for."""
SMALLEST = 2**16
"""Fewer weights are done with before a kernel is found."""
_WHOLE, _WASTE = 64, 8
"""So many rows are not cut up; of more, at most one in so many is filled up."""


class PackedLinear(nn.Module):
    """Computes what an `nn.Linear` does, without gradients.

    Its `weight` tells shape and dtype like any other; `state_dict` has it in the usual order.
    """

    def __init__(self, linear: nn.Linear, *, shared: bool = False) -> None:
        """Takes over `linear`; a weight that another module needs too is `shared`: it stays as it is."""
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.weight = linear.weight if shared else nn.Parameter(_packed(linear.weight), requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., in] becomes [..., out]."""
        rows = x.numel() // self.in_features
        if rows in SIZES:
            return _product(x, self.weight, self.bias)
        flat, products = x.reshape(rows, self.in_features), []
        for begin, end, size in _pieces(rows):
            piece = F.pad(flat[begin:end], (0, 0, 0, size - (end - begin)))
            products.append(_product(piece, self.weight, self.bias)[: end - begin])
        return torch.cat(products).view(*x.shape[:-1], self.out_features)

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.weight.is_mkldnn:
            destination[f"{prefix}weight"] = self.weight.detach().to_dense()


def pack_linears(model: Model) -> Model:
    """`model`, with a `PackedLinear` in the place of each `nn.Linear` on the CPU that can have one."""
    owners = Counter(id(it) for _, it in model.named_parameters(remove_duplicate=False))
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and _gains(child.weight):
                setattr(parent, name, PackedLinear(child, shared=owners[id(child.weight)] > 1))
    return model


def _gains(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.numel() >= SMALLEST and runs(weight.dtype)


@cache
def runs(dtype: torch.dtype) -> bool:
    """Whether this machine and build of torch compute with packed weights of `dtype`."""
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    x = torch.arange(32, dtype=dtype)[None]
    try:
        return torch.equal(_product(x, _packed(torch.eye(32, dtype=dtype)), None), x)
    except (AttributeError, RuntimeError):  # no such operator, or none for this processor
        return False


def _packed(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
    return packed


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


@lru_cache(maxsize=1024)
def _pieces(rows: int) -> tuple[tuple[int, int, int], ...]:
    """Where each piece begins and ends, and the size that it has or is filled up to."""
    pieces: list[tuple[int, int, int]] = []
    begin = 0
    while begin < rows or not pieces:
        left = rows - begin
        filled = min((it for it in SIZES if it >= left), default=0)
        wasteful = filled - left > left // _WASTE and left > _WHOLE
        size = filled if filled and not wasteful else max(it for it in SIZES if it <= left)
        pieces.append((begin, min(begin + size, rows), size))
        begin += size
    return tuple(pieces)
