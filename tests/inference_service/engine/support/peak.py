"""Peak memory of a forward, measured in a process of its own and as reported.

python -m tests.inference_service.engine.support.peak
"""

from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3Model

from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.families.memory.working_memory import forward_bytes

ROWS, CONTEXT = 1024, 4096


def resident(field: str) -> int:
    """Of this process, in bytes: `VmRSS` now, `VmHWM` the most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


@torch.inference_mode()
def main() -> None:
    """Prints bytes measured and bytes told."""
    torch.set_num_threads(1)
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
    told = forward_bytes(config, torch.float32, ROWS, CONTEXT, torch.device("cpu"))
    print(resident("VmHWM") - before, told)
    del filler


if __name__ == "__main__":
    main()
