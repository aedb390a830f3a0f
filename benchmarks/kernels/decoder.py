"""Forwards of a decoder of 8 layers of width 512, with the CPU kernels and with torch alone."""

from functools import partial
from typing import Final
from unittest.mock import patch

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.kernels.timing import medians
from benchmarks.report import Goal, Report
from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.kernels.layers import Layers
from inference_service.kernels.packed_linear import pack_linears

CONTEXT: Final = 160
"""The rows in each session's context."""
FORWARDS: Final = ((1, 1), (16, 1), (16, 12), (1, 128))
"""Pairs of a number of sessions and the rows of each."""
DTYPES: Final = (torch.float32, torch.bfloat16)
COLUMNS: Final = ("dtype, sessions x rows", "torch, ms", "kernels, ms", "kernels / torch")


def larger(dtype: torch.dtype, layers: int = 8) -> Qwen3ForCausalLM:
    """Return a random Qwen3 of width 512 with packed linear layers."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=1024,
    )
    return pack_linears(Qwen3ForCausalLM(config).to(dtype).eval())


def decoders(model: Qwen3ForCausalLM, sessions: int) -> tuple[PackedDecoder, PackedDecoder]:
    """Return a decoder without kernels and one with them, over the same weights and contexts."""
    with patch.object(Layers, "fit", lambda _: False):
        plain = PackedDecoder(model.model, sessions, 1024, embeddings=model.model.embed_tokens)
    ours = PackedDecoder(model.model, sessions, 1024, embeddings=model.model.embed_tokens)
    for decoder in (plain, ours):
        decoder.forward([Segment(slot, 0, 0, _rows(CONTEXT)) for slot in range(sessions)])
    return plain, ours


@torch.inference_mode()
def measure(is_short: bool) -> Report:
    """Return the table of CPU-milliseconds per forward."""
    found, ratios = [], {}
    for dtype in DTYPES:
        model = larger(dtype)
        for sessions, count in FORWARDS:
            segments = [Segment(slot, CONTEXT, CONTEXT, _rows(count)) for slot in range(sessions)]
            calls = [partial(decoder.forward, segments) for decoder in decoders(model, sessions)]
            usual, ours = (1000 * time for time in medians(calls, 3 if is_short else 15))
            name = f"{str(dtype).removeprefix('torch.')}, {sessions} x {count}"
            ratios[name] = ours / usual
            found.append((name, usual, ours, ours / usual))
    return Report(
        "decoder",
        f"Forwards of a random Qwen3 of 512 x 8 over contexts of {CONTEXT} rows:"
        " `python -m benchmarks.kernels decoder`",
        COLUMNS,
        found,
        (
            Goal("a row in float32, kernels over torch", ratios["float32, 1 x 1"], 0.8),
            Goal("16 sessions in float32, kernels over torch", ratios["float32, 16 x 1"], 0.8),
            Goal("16 sessions in bfloat16, kernels over torch", ratios["bfloat16, 16 x 1"], 0.7),
        ),
        where="processor time of one thread",
    )


def _rows(count: int) -> Rows:
    return Rows.of_ids([number % 64 for number in range(count)])
