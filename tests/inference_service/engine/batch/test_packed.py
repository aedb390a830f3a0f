"""Packed forwards go by differences of positions, and leave no cleared slot behind."""

import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaModel,
    MistralConfig,
    MistralModel,
    PreTrainedModel,
    Qwen3Config,
    Qwen3Model,
)

from inference_service.device.rows import Rows
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.decoder import PackedDecoder, Segment

HIDDEN = 64
CAPACITY = 48
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}


def sharp(model: PreTrainedModel) -> PreTrainedModel:
    """`model` with weights large enough for attention to tell its rows apart."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(5)
    return model.eval()


def qwen3() -> PreTrainedModel:
    return sharp(Qwen3Model(
        Qwen3Config(
            vocab_size=8, hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, rope_parameters=ROPE,
        )
    ))  # fmt: skip


def llama() -> PreTrainedModel:
    return sharp(LlamaModel(
        LlamaConfig(
            vocab_size=8, hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=4, rope_parameters=ROPE,
            bos_token_id=None, eos_token_id=None,
        )
    ))  # fmt: skip


def mistral() -> PreTrainedModel:
    """Every row sees seven rows, itself included."""
    return sharp(MistralModel(
        MistralConfig(
            vocab_size=8, hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, rope_parameters=ROPE, sliding_window=7,
        )
    ))  # fmt: skip


def feed(context: Context, rows: Tensor) -> Tensor:
    """Append rows [n, hidden] to a context; return their hidden states [n, hidden]."""
    (hidden,) = context.decoder.forward([context.segment(Rows.of(rows))])
    context.advance(len(rows))
    return hidden


def test_differences_of_positions_matter_and_nothing_else_of_them() -> None:
    torch.manual_seed(0)
    decoder = PackedDecoder(qwen3(), 2, CAPACITY)
    rows = torch.randn(20, HIDDEN)
    near, far = decoder.forward([Segment(0, 0, 0, Rows.of(rows)), Segment(1, 0, 5000, Rows.of(rows))])
    torch.testing.assert_close(near, far, atol=1e-4, rtol=0)
    decoder.cache.clear(0)
    (turned,) = decoder.forward([Segment(0, 0, 0, Rows.of(rows.flip(0)))])
    assert not torch.allclose(near[-1], turned.flip(0)[-1], atol=1e-3)


def test_a_cleared_slot_holds_nothing() -> None:
    torch.manual_seed(0)
    decoder = PackedDecoder(llama(), 2, CAPACITY)
    decoder.forward(
        [Segment(0, 0, 0, Rows.of(torch.randn(9, HIDDEN))), Segment(1, 0, 0, Rows.of(torch.randn(9, HIDDEN)))]
    )
    decoder.cache.clear(0)
    assert not decoder.cache.runs(0, 0, CAPACITY)
    ((row, count),) = decoder.cache.runs(1, 0, 9)
    for slab in (decoder.cache.keys, decoder.cache.values):
        held = slab.abs().sum(dim=(0, 1, 3)).nonzero().flatten().tolist()
        assert held == list(range(row, row + count))
