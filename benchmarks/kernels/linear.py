"""The linear layers of a decoder of 8 layers of width 512, packed and as `nn.Linear`."""

from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from benchmarks.kernels.timing import medians
from benchmarks.report import Goal, Report
from inference_service.kernels.packed_linear import pack_linears

LAYERS: Final = 8
SHAPES: Final = ((512, 512), (512, 256), (512, 256), (512, 512), (512, 1536), (512, 1536), (1536, 512))
"""The shapes of the layers: queries, keys, values, attention output, gate, up and down projection."""
ROWS: Final = (1, 4, 16, 64)
DTYPES: Final = (torch.float32, torch.bfloat16)
COLUMNS: Final = ("dtype, rows", "nn.Linear, ms", "packed, ms", "packed / nn.Linear")


def layers(dtype: torch.dtype) -> nn.ModuleList:
    """Return the layers with random weights, different in each layer."""
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(*shape, bias=False) for _ in range(LAYERS) for shape in SHAPES).to(dtype)


def forward(stack: nn.ModuleList, given: dict[int, Tensor]) -> None:
    """Run every layer once, on the input of its width."""
    for layer in stack:
        layer(given[layer.in_features])


@torch.inference_mode()
def measure(is_short: bool) -> Report:
    """Return the table of CPU-milliseconds for all layers together."""
    rows, ratios = [], {}
    for dtype in DTYPES:
        plain, packed = layers(dtype), pack_linears(layers(dtype))
        for count in ROWS:
            given = {width: torch.randn(count, width).to(dtype) for width in (512, 1536)}
            calls = [partial(forward, stack, given) for stack in (plain, packed)]
            usual, ours = (1000 * time for time in medians(calls, 3 if is_short else 15))
            name = f"{str(dtype).removeprefix('torch.')}, {count}"
            ratios[name] = ours / usual
            rows.append((name, usual, ours, ours / usual))
    return Report(
        "linear",
        "The linear layers of 512 x 8 layers, with 1,536 between: `python -m benchmarks.kernels linear`",
        COLUMNS,
        rows,
        (
            Goal("16 rows in float32, packed over nn.Linear", ratios["float32, 16"], 0.6),
            Goal("1 row in float32, packed over nn.Linear", ratios["float32, 1"], 1.1),
            Goal("1 row in bfloat16, packed over nn.Linear", ratios["bfloat16, 1"], 0.75),
        ),
        where="processor time of one thread",
    )
