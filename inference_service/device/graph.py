"""Captured steps: a computation of fixed shape is captured once on a CUDA device, and called directly
elsewhere.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from antiphon_service.semconv import Preparation
from inference_service.device.preparations import PREPARATIONS

Made = TypeVar("Made", Tensor, tuple[Tensor, ...])

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Row counts for which steps are captured; other counts are padded."""


_ALIGNED = 256
"""Alignment in bytes of the inputs of a region."""


def size_for(count: int, sizes: Sequence[int] = SIZES) -> int | None:
    """Return the smallest size that holds `count`; None if none does."""
    at = bisect_left(sizes, count)
    return sizes[at] if at < len(sizes) else None


class Graph(Generic[Made]):
    """A captured computation on buffers with fixed addresses.

    On a CUDA device the first call runs it and records its kernels. Every other call launches all of them at
    once, because Python takes longer than the device for a small step. The computation must not synchronise
    with the device, and its inputs must have the same addresses in every call. *Not tested on CUDA.*
    """

    def __init__(self, device: torch.device, compute: Callable[[], Made], pool: Any = None) -> None:
        """Create a graph; those of one `pool` share memory, so only one of them may run at a time."""
        PREPARATIONS.note(Preparation.CAPTURE, getattr(compute, "__qualname__", type(compute).__name__))
        self._device = device
        self._compute: Callable[[], Made] = compute
        self._pool = pool
        self._graph: torch.cuda.CUDAGraph | None = None
        self._made: Made

    def __call__(self) -> Made:
        """Return the result, which belongs to the caller."""
        if self._device.type != "cuda":
            return self._compute()
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        self._graph.replay()
        if isinstance(self._made, Tensor):
            return self._made.clone()
        return tuple(part.clone() for part in self._made)

    def _capture(self) -> None:
        """Run once outside the graph, because libraries set themselves up in their first calls;
        then capture.
        """
        with torch.cuda.device(self._device):
            stream = torch.cuda.Stream(self._device)
            stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(stream):
                self._compute()
            torch.cuda.current_stream(self._device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # torch's own capture stream belongs to whichever device was current when it was made: a graph of
            # another device would be empty. "thread_local" lets other threads allocate meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                self._made = self._compute()
            self._graph = graph


class Region:
    """A function of tensors that is captured for some shapes, and called directly for others.

    Captured shapes share the memory of their inputs, so only one of them may run at a time.
    """

    def __init__(
        self, device: torch.device, compute: Callable[..., tuple[Tensor, ...]], pool: Any = None
    ) -> None:
        """Create a region; `compute` is called with tensors and a name, which tells apart equal shapes.

        Graphs of one `pool` share their memory.
        """
        self._device = device
        self._compute = compute
        self._pool = graph_pool(device) if pool is None else pool
        self._room = torch.zeros(0, dtype=torch.uint8, device=device)
        self._known: dict[Hashable, tuple[list[Tensor], Graph[tuple[Tensor, ...]]]] = {}

    def prepare(self, name: Hashable, given: Sequence[Tensor]) -> None:
        """Capture the region for tensors like these; the largest ones must come first.

        Raises `ValueError` for larger tensors than the first ones, whose memory existing graphs read.
        """
        places, size = list[int](), 0
        for it in given:
            places.append(size)
            size += -(-it.nbytes // _ALIGNED) * _ALIGNED
        if not self._known:
            self._room = torch.zeros(size, dtype=torch.uint8, device=self._device)
        if size > len(self._room):
            raise ValueError(f"The first tensors took {len(self._room)} bytes, these take {size}.")
        buffers = [
            self._room[at : at + it.nbytes].view(it.dtype).view(it.shape)
            for at, it in zip(places, given, strict=True)
        ]
        graph: Graph[tuple[Tensor, ...]] = Graph(
            self._device, lambda: self._compute(name, *buffers), self._pool
        )
        self._known[_key(name, given)] = buffers, graph
        self(name, *given)

    def knows(self, name: Hashable, given: Sequence[Tensor]) -> bool:
        """Return whether the region is captured for tensors like these."""
        return _key(name, given) in self._known

    def __call__(self, name: Hashable, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the result for these tensors, which belongs to the caller."""
        known = self._known.get(_key(name, given)) if self._known else None
        if known is None:
            return self._compute(name, *given)
        buffers, graph = known
        torch._foreach_copy_(buffers, list(given))
        return graph()


def _key(name: Hashable, given: Sequence[Tensor]) -> Hashable:
    return name, *((it.shape, it.dtype) for it in given)


def make_current(device: torch.device) -> None:
    """Make a CUDA device the current one of this thread; each thread that uses it must call this.

    cuDNN's attention is switched off: with a mask it has returned zeros in half precision on an H200.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.enable_cudnn_sdp(False)


def graph_pool(device: torch.device) -> Any:
    """Return memory that graphs may share; None without CUDA graphs."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None
