"""Data sheets of GPUs, and assumptions that hold for all of them."""

from dataclasses import dataclass, field, fields
from typing import Any, Final

GIB: Final = 2**30


@dataclass(frozen=True)
class Card:
    """The data sheet of a GPU; rates are per second."""

    name: str
    free_gib: float
    """Free memory for a worker, weights included."""
    bytes_per_s: float
    flops_16: float
    """Dense bfloat16."""
    flops_32: float
    """Float32 without tensor cores."""

    @property
    def free_bytes(self) -> int:
        """`free_gib` in bytes."""
        return round(self.free_gib * GIB)

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.free_gib:g} GiB free, {self.bytes_per_s / 1e12:g} TB/s, "
            f"{self.flops_16 / 1e12:g} TFLOP/s in bfloat16, {self.flops_32 / 1e12:g} in float32"
        )


CARDS: Final = {
    "h200": Card("H200", 139, 4.8e12, 990e12, 67e12),
    "h100": Card("H100", 80, 3.35e12, 990e12, 67e12),
    "l40s": Card("L40S", 48, 0.864e12, 362e12, 91.6e12),
    "rtx4090": Card("RTX 4090", 24, 1.008e12, 165e12, 82.6e12),
}
"""One card for each size of memory in `docs/gpu.md`."""


def _assumed(value: float, meaning: str) -> Any:
    return field(default=value, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Assumptions:
    """Numbers that are neither in a data sheet nor counted; each is an option of the command."""

    share_of_bandwidth: float = _assumed(0.6, "share of the bandwidth that is reached")
    share_of_flops: float = _assumed(0.3, "share of the FLOP/s that is reached")
    kernel_us: float = _assumed(2.5, "GPU time of a kernel in a captured region, beside its bytes and FLOP")
    launch_us: float = _assumed(8.0, "time of the Python thread for an operator outside regions")
    layer_kernels: float = _assumed(16, "kernels of a decoder layer after torch.compile")
    draw_kernels: float = _assumed(80, "kernels that draw a speech code")
    eye_launches: float = _assumed(500, "operators of the eye, which is not captured")
    session_ms: float = _assumed(
        0.45, "time of the Python thread for each session in a forward, about 2 ms a unit"
    )
    hift_gflop: float = _assumed(50.0, "GFLOP of HiFT for a second of sound")
    least_context: float = _assumed(
        4096, "rows that a forward reads of a context at least, as in old sessions"
    )
    jitter_ms: float = _assumed(
        5.0, "standard deviation of a normal draw; a unit arrives late by the absolute value of the draw"
    )

    def lines(self) -> list[str]:
        """Return a line of text for each number."""
        return [f"{it.name} {getattr(self, it.name):g}: {it.metadata['meaning']}" for it in fields(self)]
