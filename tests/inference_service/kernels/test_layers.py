"""Layers by kernels give what transformers' own give, for all sizes that rows come in."""

import copy
import shutil
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaModel, Qwen3Config, Qwen3Model

from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.kernels.layers import Layers
from inference_service.kernels.packed_linear import pack_linears
from inference_service.kernels.selection import usable

SIZES = {"num_hidden_layers": 2, "vocab_size": 8, "max_position_embeddings": 4096}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}

needs_kernels = pytest.mark.skipif(not usable("native"), reason="there was no compiler at installation")


def test_kernels_are_there_where_there_is_a_compiler() -> None:
    """Else all tests of them would be skipped, and nobody would know."""
    headers = Path(sysconfig.get_path("include"), "Python.h")
    built = all(map(usable, ("draw", "linear", "mel", "native")))
    assert built or not (shutil.which("cc") and headers.exists()), "make install builds them"


def model(head: int, groups: int, hidden: int) -> Qwen3Model:
    torch.manual_seed(head + groups)
    heads = {"num_attention_heads": 2 * groups, "num_key_value_heads": 2, "head_dim": head}
    config = Qwen3Config(hidden_size=hidden, intermediate_size=3 * 16, rope_parameters=ROPE, **heads, **SIZES)
    made = Qwen3Model(config).eval()
    for name, parameter in made.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return made


@needs_kernels
@torch.inference_mode()
@pytest.mark.parametrize(
    ("head", "groups", "hidden"), [(16, 1, 24), (32, 3, 40), (64, 2, 64), (80, 4, 48), (128, 7, 64)]
)
def test_rows_are_what_the_model_makes_of_them(head: int, groups: int, hidden: int) -> None:
    """In pieces of 1 to 70 rows, more than are answered together, and over the edges of pages."""
    own = model(head, groups, hidden)
    assert Layers.fit(own)
    decoder = PackedDecoder(pack_linears(copy.deepcopy(own)), 1, 256)
    rows, heard, begin = torch.randn(200, hidden), [], 0
    for count in (1, 2, 3, 5, 8, 13, 1, 70, 1, 40, 31, 25):
        heard += decoder.forward([Segment(0, begin, begin, Rows.of(rows[begin : begin + count]))])
        begin += count
    whole = own(inputs_embeds=rows[None], use_cache=False).last_hidden_state[0]
    torch.testing.assert_close(torch.cat(heard), whole, atol=3e-5, rtol=1e-4)


@needs_kernels
@torch.inference_mode()
def test_rows_of_several_sessions_are_cut_up_anywhere() -> None:
    """305 rows are more than one piece; sessions lie across their edges."""
    own = model(16, 2, 32)
    decoder = PackedDecoder(pack_linears(copy.deepcopy(own)), 4, 160)
    counts, rows = (100, 5, 151, 49), torch.randn(4, 160, 32)
    for slot, row in enumerate(rows[:, :9]):
        decoder.forward([Segment(slot, 0, 0, Rows.of(row))])
    heard = decoder.forward(
        [Segment(slot, 9, 9, Rows.of(rows[slot, 9 : 9 + count])) for slot, count in enumerate(counts)]
    )
    for slot, count in enumerate(counts):
        whole = own(inputs_embeds=rows[None, slot, : 9 + count], use_cache=False).last_hidden_state[0]
        torch.testing.assert_close(heard[slot], whole[9:], atol=3e-5, rtol=1e-4)


@needs_kernels
@torch.inference_mode()
@pytest.mark.parametrize("counts", [(2, 1), (600, 3), (3, 600), (1, 1, 255, 1, 40), (256, 256)])
def test_last_rows_are_the_same_without_the_others(counts: tuple[int, ...]) -> None:
    """Also where no session ends in a piece, or one with it."""
    decoder = PackedDecoder(pack_linears(model(16, 2, 32)), len(counts), 640)
    rows = torch.randn(len(counts), 640, 32)
    for slot, row in enumerate(rows[:, :9]):
        decoder.forward([Segment(slot, 0, 0, Rows.of(row))])
    segments = [Segment(slot, 9, 9, Rows.of(rows[slot, 9 : 9 + n])) for slot, n in enumerate(counts)]
    beside = np.arange(3)
    last, (there,) = decoder.last(segments, beside)
    kept = decoder.cache.keys.clone(), decoder.cache.values.clone()
    whole = decoder.forward(segments)
    torch.testing.assert_close(last, torch.stack([it[-1] for it in whole]), atol=3e-5, rtol=1e-4)
    assert torch.equal(there, torch.from_numpy(beside))
    assert torch.equal(kept[0], decoder.cache.keys), "all rows are in the cache, of the last layer too"
    assert torch.equal(kept[1], decoder.cache.values)


@needs_kernels
@torch.inference_mode()
def test_half_precision_is_as_near_as_the_models_own() -> None:
    exact = model(64, 2, 64)
    half = copy.deepcopy(exact).bfloat16()
    rows = torch.randn(40, 64)
    wanted = exact(inputs_embeds=rows[None], use_cache=False).last_hidden_state[0]
    plain = half(inputs_embeds=rows[None].bfloat16(), use_cache=False).last_hidden_state[0]
    decoder = PackedDecoder(pack_linears(copy.deepcopy(half)), 1, 64)
    (own,) = decoder.forward([Segment(0, 0, 0, Rows.of(rows.bfloat16()))])
    assert (own.float() - wanted).abs().mean() <= 1.1 * (plain.float() - wanted).abs().mean()


@needs_kernels
@torch.inference_mode()
def test_decoder_forward_leaves_input_rows_unchanged() -> None:
    decoder = PackedDecoder(model(16, 1, 32), 1, 64)
    rows = torch.randn(16, 32)
    kept = rows.clone()
    decoder.forward([Segment(0, 0, 0, Rows.of(rows))])
    assert torch.equal(rows, kept)


@needs_kernels
def test_other_layers_are_left_to_the_model() -> None:
    def llama(**others: object) -> LlamaModel:
        sizes = {"hidden_size": 64, "intermediate_size": 32, "num_attention_heads": 4} | SIZES | others
        return LlamaModel(LlamaConfig(**sizes))  # type: ignore[arg-type]

    assert Layers.fit(llama())
    assert not Layers.fit(llama(hidden_act="gelu"))
    assert not Layers.fit(llama(intermediate_size=40))
    assert not Layers.fit(llama(num_attention_heads=8))  # of 8 numbers each
    assert not Layers.fit(llama().half())
    mixed = llama().bfloat16()
    mixed.norm.float()
    assert not Layers.fit(mixed)
    assert not Layers.fit(llama().to("meta"))
