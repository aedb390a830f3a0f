"""Memory of a forward or of oneDNN's linear kernels, measured in a process of its own and as reported.

python -m tests.inference_service.engine.support.peak forward|kernels
"""

import sys
from pathlib import Path

import torch
from torch import nn
from transformers import Qwen3Config, Qwen3Model

from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.families.memory.working_memory import forward_bytes, kernel_bytes
from inference_service.kernels.packed_linear import SIZES, pack_linears
from inference_service.kernels.selection import select

CPU = torch.device("cpu")
ROWS, CONTEXT = 1024, 4096
SHAPES = ((512, 1536), (1536, 512), (512, 1024), (1024, 512), (512, 512), (512, 4096))


def resident(field: str) -> int:
    """Return the resident memory of this process in bytes: `VmRSS` now, `VmHWM` at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def forward() -> tuple[int, int]:
    """Return the bytes of a forward, measured and estimated."""
    config = Qwen3Config(
        vocab_size=8, hidden_size=768, intermediate_size=2304, num_hidden_layers=2, num_attention_heads=12,
        num_key_value_heads=4, head_dim=64, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip
    decoder = PackedDecoder(Qwen3Model(config).eval(), 1, CONTEXT)
    for tensor in (decoder.cache.keys, decoder.cache.values):
        tensor.fill_(0.1)
    decoder.forward([Segment(0, 0, 0, Rows.of(torch.randn(1, 768)))])
    rows = torch.randn(ROWS, 768)
    # The filler takes up freed memory, whose reuse would not show in the peak.
    filler = [torch.ones(2**18) for _ in range((resident("VmHWM") - resident("VmRSS")) // 2**20 + 1)]
    before = resident("VmRSS")
    decoder.forward([Segment(0, CONTEXT - ROWS, CONTEXT - ROWS, Rows.of(rows))])
    measured = resident("VmHWM") - before
    del filler
    return measured, forward_bytes(config, torch.float32, ROWS, CONTEXT, CPU)


def kernels() -> tuple[int, int]:
    """Return the bytes of kernels for all numbers of rows, measured and estimated."""
    select("off")  # measure oneDNN, since our own kernels cache nothing
    layers = pack_linears(nn.ModuleList(nn.Linear(*shape) for shape in SHAPES))
    rows = torch.randn(2 * max(SIZES), 1536)
    for layer, (width, _) in zip(layers, SHAPES, strict=True):
        layer(rows[:512, :width])
    before = resident("VmRSS")
    for count in range(1, 2 * max(SIZES)):
        for layer, (width, _) in zip(layers, SHAPES, strict=True):
            layer(rows[:count, :width])
    return resident("VmRSS") - before, kernel_bytes(len(SHAPES), torch.float32, CPU)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.inference_mode():
        print(*{"forward": forward, "kernels": kernels}[sys.argv[1]]())
