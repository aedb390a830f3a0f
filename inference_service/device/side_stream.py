"""Work on the device beside that of the engine, which the host need not wait for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Arrival:
    """A tensor that is on its way to the host, or is there."""

    _tensor: Tensor
    _event: torch.cuda.Event | None = None
    """Of its copy."""

    @property
    def is_here(self) -> bool:
        """Whether nothing is to be waited for."""
        return self._event is None or self._event.query()

    def take(self) -> Tensor:
        """Return the tensor on the CPU; blocks until it is there."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor


class SideStream:
    """A stream of its own on a CUDA device; elsewhere plain calls. *Not run on CUDA.*

    A stream has memory of its own: whatever is kept between calls must be made and used in calls alone. What
    they have left free goes back to the device when another stream finds no memory, which waits for both.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def call(self, compute: Callable[[], T]) -> T:
        """Return what `compute` makes, for further calls alone; it sees all that was asked of the device
        before."""
        if self._stream is None:
            return compute()
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            return compute()

    def send(self, compute: Callable[[], list[Tensor]]) -> list[Arrival]:
        """Return what `compute` makes, on its way to the host."""
        return self.call(lambda: self._sent(compute()))

    def _sent(self, tensors: list[Tensor]) -> list[Arrival]:
        if self._stream is None:
            return [Arrival(tensor.cpu()) for tensor in tensors]
        pinned = [torch.empty(it.shape, dtype=it.dtype, pin_memory=True) for it in tensors]
        for host, tensor in zip(pinned, tensors, strict=True):
            host.copy_(tensor, non_blocking=True)
        event = torch.cuda.Event()
        event.record(self._stream)
        return [Arrival(host, event) for host in pinned]
