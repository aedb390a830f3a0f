"""Peak memory of oneDNN's linear kernels, measured in a process of its own and as reported.

python -m tests.inference_service.engine.support.kernels
"""

import torch
from torch import nn

from inference_service.families.memory.working_memory import kernel_bytes
from inference_service.kernels.packed_linear import SIZES, pack_linears
from inference_service.kernels.selection import select
from tests.inference_service.engine.support.peak import resident

SHAPES = ((512, 1536), (1536, 512), (512, 1024), (1024, 512), (512, 512), (512, 4096))


@torch.inference_mode()
def main() -> None:
    """Prints bytes measured and bytes told."""
    torch.set_num_threads(1)
    select("off")  # our own product keeps nothing
    layers = pack_linears(nn.ModuleList(nn.Linear(*shape) for shape in SHAPES))
    rows = torch.randn(2 * max(SIZES), 1536)
    for layer, (width, _) in zip(layers, SHAPES, strict=True):
        layer(rows[:512, :width])
    before = resident("VmRSS")
    for count in range(1, 2 * max(SIZES)):
        for layer, (width, _) in zip(layers, SHAPES, strict=True):
            layer(rows[:count, :width])
    print(resident("VmRSS") - before, kernel_bytes(len(SHAPES), torch.float32, torch.device("cpu")))


if __name__ == "__main__":
    main()
