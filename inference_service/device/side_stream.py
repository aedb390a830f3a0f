"""Work on the device in parallel with the engine's, without synchronising the host."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Arrival:
    """A tensor that is being copied to the host, or has been."""

    _tensor: Tensor
    _event: torch.cuda.Event | None = None
    """The event of its copy."""

    @property
    def is_here(self) -> bool:
        """Whether the copy is complete."""
        return self._event is None or self._event.query()

    def take(self) -> Tensor:
        """Return the tensor on the CPU; blocks until the copy is complete."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor


class SideStream:
    """A separate stream on a CUDA device; plain calls elsewhere. *Not tested on CUDA.*

    A stream has its own memory: tensors kept between calls must be made and used only in calls. Its free
    memory returns to the device when another stream runs out, which synchronises both.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def call(self, compute: Callable[[], T]) -> T:
        """Return the result of `compute`, for use in later calls only; it sees all earlier work of the
        device.
        """
        if self._stream is None:
            return compute()
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            return compute()

    def send(self, compute: Callable[[], list[Tensor]]) -> list[Arrival]:
        """Return the results of `compute`, which are being copied to the host."""
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
