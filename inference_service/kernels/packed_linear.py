"""Linear layers for the CPU, whose weights are stored in the order in which their kernels read them.

In float32, on one thread, the kernel is our own (`panels`), for any number of rows. Otherwise it is oneDNN's,
which in bfloat16 takes half the time of `nn.Linear` for one row. oneDNN makes and caches a kernel of half a
MiB for each number of rows. So it gets only batches of a few `SIZES`: other batches are cut up, and the last
piece is padded with zeros. Layers of a decoder that read the same rows are joined, which saves calls.

With kernels off, weights stay as they are, in the order of their file: nothing is packed or joined, so that
weights which are mapped from a file take no memory of their own.
"""

from collections import Counter
from functools import cache, lru_cache, partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference_service.kernels import panels, selection
from inference_service.kernels.panels import Panels

Model = TypeVar("Model", bound=nn.Module)

SIZES = (1, 4, 8, 16, 24, 32, 40, 48, 56, 64, 128, 256)
"""Numbers of rows that oneDNN has kernels for."""
SMALLEST = 2**16
"""Size of a weight below which it is not packed: its product takes less time than finding a kernel."""
_WHOLE, _WASTE = 64, 8
"""Up to `_WHOLE` rows are padded and not cut up; more rows are padded by at most 1 / `_WASTE` of them."""
_COMMON = {
    f"transformers.models.{name.lower()}.modeling_{name.lower()}.{name}DecoderLayer"
    for name in ("Llama", "Mistral", "Qwen2", "Qwen3")
}
_JOINED = (
    ("self_attn", "qkv_proj", ("q_proj", "k_proj", "v_proj")),
    ("mlp", "gate_up_proj", ("gate_proj", "up_proj")),
)
"""Projections of a common layer to join: the module, the joined name, and the parts."""


class PackedLinear(nn.Module):
    """Computes what an `nn.Linear` does, without gradients.

    Its `weight` has shape and dtype as usual; `state_dict` has it in the usual order.
    """

    def __init__(self, linear: nn.Linear, *, shared: bool = False) -> None:
        """Take the weights of `linear`; weights `shared` with another module or a file are not packed."""
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        weight = linear.weight
        self._panels = Panels(weight, linear.bias) if panels.fit(weight.dtype) and not shared else None
        if self._panels is not None:
            # The placeholder keeps shape and dtype, and takes no memory; its numbers are NaN.
            weight = nn.Parameter(torch.full((), torch.nan).expand(weight.shape), requires_grad=False)
        elif not shared:
            weight = nn.Parameter(_packed(weight), requires_grad=False)
        self.weight = weight
        self.bias = linear.bias

    @property
    def is_cut(self) -> bool:
        """Whether rows are cut up and padded to `SIZES`."""
        return self._panels is None

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] for `x` [..., in]."""
        if self._panels is not None:
            return self._panels.product(x)
        rows = x.numel() // self.in_features
        if rows in SIZES:
            return _product(x, self.weight, self.bias)
        flat, products = x.reshape(rows, self.in_features), []
        for begin, end, size in pieces_of(rows):
            piece = F.pad(flat[begin:end], (0, 0, 0, size - (end - begin)))
            products.append(_product(piece, self.weight, self.bias)[: end - begin])
        return torch.cat(products).view(*x.shape[:-1], self.out_features)

    def usual_weight(self) -> Tensor:
        """Return the weight [out, in] in the usual order."""
        if self._panels is not None:
            return self._panels.weight()
        weight = self.weight.detach()
        return weight.to_dense() if weight.is_mkldnn else weight

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._panels is not None or self.weight.is_mkldnn:
            destination[f"{prefix}weight"] = self.usual_weight()


class Part(nn.Module):
    """One part of a joined layer, which is the attribute `name` of `parent`.

    It computes the whole joined layer: a caller that needs several parts should call the joined one.
    """

    def __init__(self, parent: nn.Module, name: str, begin: int, end: int) -> None:
        super().__init__()
        self._parents = (parent,)  # in a tuple, so that it is no submodule
        self._name, self._begin, self._end = name, begin, end

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] for `x` [..., in]."""
        products: Tensor = getattr(self._parents[0], self._name)(x)
        return products[..., self._begin : self._end]

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        joined = getattr(self._parents[0], self._name)
        weight = joined.usual_weight() if isinstance(joined, PackedLinear) else joined.weight.detach()
        destination[f"{prefix}weight"] = weight[self._begin : self._end]
        if joined.bias is not None:
            destination[f"{prefix}bias"] = joined.bias.detach()[self._begin : self._end]


def is_common(layer: nn.Module) -> bool:
    """Return whether a layer is a usual decoder layer: norm, attention, norm, gated network.

    Its attention has rotary positions, and perhaps norms of queries and keys, biases and a window.
    """
    return f"{type(layer).__module__}.{type(layer).__qualname__}" in _COMMON


def pack_linears(model: Model) -> Model:
    """Replace each suitable `nn.Linear` on the CPU by a `PackedLinear`; return `model`.

    Layers of a common layer that read the same rows are joined first; each is then a `Part`.
    """
    owners = Counter(id(it) for _, it in model.named_parameters(remove_duplicate=False))
    keeps_order = selection.selected() == "off"
    for layer in list(model.modules()):
        if is_common(layer) and not keeps_order:
            for where, name, parts in _JOINED:
                _join(layer.get_submodule(where), name, parts, owners)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            shared = type(child) is nn.Linear and (keeps_order or owners[id(child.weight)] > 1)
            if type(child) is nn.Linear and _gains(child.weight, shared):
                setattr(parent, name, PackedLinear(child, shared=shared))
    return model


def _join(parent: nn.Module, name: str, parts: tuple[str, ...], owners: Counter[int]) -> None:
    """Join linear layers of the same rows, if no other module shares their weights."""
    linears = [getattr(parent, part) for part in parts]
    if (
        not all(
            type(it) is nn.Linear and it.weight.device.type == "cpu" and owners[id(it.weight)] == 1
            for it in linears
        )
        or len({it.bias is None for it in linears}) > 1
    ):
        return
    first, begin = linears[0], 0
    width = sum(it.out_features for it in linears)
    joined = nn.Linear(first.in_features, width, first.bias is not None, "meta")
    joined.weight = nn.Parameter(torch.cat([it.weight.detach() for it in linears]), requires_grad=False)
    if first.bias is not None:
        joined.bias = nn.Parameter(torch.cat([it.bias.detach() for it in linears]), requires_grad=False)
    setattr(parent, name, joined)
    parent.register_state_dict_post_hook(partial(_hide, name))
    for part, it in zip(parts, linears, strict=True):
        setattr(parent, part, Part(parent, name, begin, begin + it.out_features))
        begin += it.out_features


def _hide(name: str, parent: nn.Module, state: dict[str, Tensor], prefix: str, metadata: object) -> None:
    """Remove the state of a joined layer, because its parts have it."""
    for tensor in ("weight", "bias"):
        state.pop(f"{prefix}{name}.{tensor}", None)


def _gains(weight: Tensor, shared: bool) -> bool:
    if weight.device.type != "cpu" or weight.numel() < SMALLEST:
        return False
    return (panels.fit(weight.dtype) and not shared) or supports(weight.dtype)


@cache
def supports(dtype: torch.dtype) -> bool:
    """Return whether oneDNN supports packed weights of `dtype` on this machine and in this build of torch."""
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
def pieces_of(rows: int) -> tuple[tuple[int, int, int], ...]:
    """Return the best cut of rows for oneDNN: start and end of each piece, and its padded size."""
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
