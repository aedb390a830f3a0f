"""Steps of one shape over and over: captured once on a CUDA device, called as they are elsewhere."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Numbers of rows that there are steps for; what lacks is filled up."""


def size_for(count: int, sizes: Sequence[int] = SIZES) -> int | None:
    """The smallest of the sizes that holds so many; None if none does."""
    at = bisect_left(sizes, count)
    return sizes[at] if at < len(sizes) else None


class Graph:
    """What `compute` makes of buffers that stay where they are.

    On a CUDA device the first call runs it and records its kernels, every other one launches all of them at
    once: without waiting for Python, which takes longer for a small step than the device. There it must wait
    for nothing of the device, and what it is given must lie in the same memory in every call. *Not run on
    CUDA.*
    """

    def __init__(self, device: torch.device, compute: Callable[[], Tensor], pool: Any = None) -> None:
        """Graphs of one `pool` share their memory, so that only one of them may run at a time."""
        self._device = device
        self._compute = compute
        self._pool = pool
        self._graph: torch.cuda.CUDAGraph | None = None
        self._made: Tensor

    def __call__(self) -> Tensor:
        """The result, which is the caller's own."""
        if self._device.type != "cuda":
            return self._compute()
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        self._graph.replay()
        return self._made.clone()

    def _capture(self) -> None:
        """Run once outside the graph, as libraries set themselves up in their first calls; then capture."""
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


def make_current(device: torch.device) -> None:
    """Make a CUDA device the current one of this thread; each thread that uses it must call this."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def graph_pool(device: torch.device) -> Any:
    """Memory that graphs may share; None where there are none."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None
