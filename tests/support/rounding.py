"""A pytest plugin that makes matrix products round differently, as on another processor.

`python -m pytest -p tests.support.rounding tests/inference_service ...` shows which verdicts hang on the
kernels of a processor, which add up sums in another order wherever its vectors are of another width. Each
element of a product moves by up to `ROUNDING` (6e-8, half the last bit) of the magnitudes that were added
up in it, alike whenever shape and place are. It acts in the process of pytest only, and not while gradients
are computed.
"""

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_SHARE = float(os.environ.get("ROUNDING", "6e-8"))
_SEED = int(os.environ.get("ROUNDING_SEED", "0"))
_NOISE = torch.rand(1_000_003, generator=torch.Generator().manual_seed(_SEED)) * 2 - 1


def _noise(shape: torch.Size) -> Tensor:
    count = shape.numel()
    return _NOISE.repeat(-(-count // len(_NOISE)))[:count].view(shape)


def _magnitude(value: Any) -> Any:
    return value.abs() if isinstance(value, Tensor) and value.is_floating_point() else value


def _rounded(product: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(product)
    def rounded(*args: Any, **kwargs: Any) -> Any:
        exact = product(*args, **kwargs)
        if torch.is_grad_enabled() or exact.dtype != torch.float32 or not exact.numel():
            return exact
        size = product(*map(_magnitude, args), **{name: _magnitude(it) for name, it in kwargs.items()})
        return torch.where(size.isfinite(), exact + _SHARE * size * _noise(exact.shape), exact)

    return rounded


def _attention(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An output of attention is a mean of values: its own size stands for theirs."""

    @wraps(attend)
    def rounded(*args: Any, **kwargs: Any) -> Tensor:
        exact = attend(*args, **kwargs)
        size = exact.square().mean(dim=-1, keepdim=True).sqrt()
        return exact if torch.is_grad_enabled() else exact + _SHARE * size * _noise(exact.shape).to(exact)

    return rounded


def _transform(stft: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Frames are transformed one by one: an error depends on the frequency and on the frame's loudness."""

    @wraps(stft)
    def rounded(*args: Any, **kwargs: Any) -> Tensor:
        parts = torch.view_as_real(stft(*args, **kwargs))
        size = parts.square().mean(dim=(-3, -1), keepdim=True).sqrt()
        bins = parts.shape[-3]
        noise = _NOISE[: 2 * bins].view(bins, 1, 2)
        return torch.view_as_complex((parts + _SHARE * size * noise).contiguous())

    return rounded


for _name in ("linear", "conv1d", "conv2d", "conv_transpose1d"):
    setattr(F, _name, _rounded(getattr(F, _name)))
for _name in ("matmul", "bmm", "mm"):
    setattr(torch, _name, _rounded(getattr(torch, _name)))
for _name in ("__matmul__", "__rmatmul__", "matmul"):
    setattr(Tensor, _name, _rounded(getattr(Tensor, _name)))
F.scaled_dot_product_attention = _attention(F.scaled_dot_product_attention)
torch.stft = _transform(torch.stft)
