"""Forwards of prompts and single rows have a few shapes, and compute what each session would alone.

Attention is FlexAttention, eagerly: see `test_flex`.
"""

import random

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

from inference_service.device import common_layers, compiling, flex
from inference_service.device.paged import AttentionBackend
from inference_service.device.rows import Rows
from inference_service.engine.batch.pages import PAGE
from tests.inference_service.device.test_steps import Made, _feed, contexts_of, pair, talk
from tests.inference_service.engine.batch.test_packed import HIDDEN, llama, mistral, qwen3
from tests.support.long import long, seeds

FLEX = AttentionBackend("flex", "", flex.over_contexts, all_rows=True)


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.mark.parametrize("model", [qwen3, llama, mistral])
@pytest.mark.parametrize("seed", seeds(0, 1, 2))
@pytest.mark.sample("0-qwen3")
def test_rows_in_joint_forwards_attend_as_in_forwards_by_session(model: Made, seed: int) -> None:
    decoders = pair(model, FLEX)
    talk(decoders, random.Random(seed), 60)
    assert decoders[1]._forwards
    assert not decoders[1]._steps


@pytest.mark.long
def test_window_that_slides_leaves_entries_where_they_are_and_needs_no_new_shape() -> None:
    """With an offset in the first page: nothing is moved."""
    usual, decoder = pair(qwen3, FLEX)
    spare = decoder.cache.pool.pages * PAGE
    before = decoder.cache.keys[:, :, :spare].clone()
    decoder.capture()
    captured = set(decoder._forwards)
    assert torch.equal(decoder.cache.keys[:, :, :spare], before)
    assert talk((usual, decoder), random.Random(1), 90) > 1
    assert any(table.offset for table in decoder.cache._tables)
    assert set(decoder._forwards) == captured


def test_rows_made_of_media_alone_need_no_embeddings() -> None:
    usual, decoder = pair(llama, FLEX, has_embeddings=False)
    generator = torch.Generator().manual_seed(0)
    contexts = contexts_of((usual, decoder), 3)
    for count in (9, 1, 3):
        given = {slot: Rows.of(torch.randn(count + slot, HIDDEN, generator=generator)) for slot in contexts}
        _feed((usual, decoder), contexts, given)


@pytest.mark.parametrize("model", [qwen3, llama, mistral])
@pytest.mark.sample("qwen3")
def test_common_layers_compute_what_their_modules_do(model: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiler: the functions that it is given."""
    monkeypatch.setattr(common_layers, "compiled", lambda function: function)
    monkeypatch.setattr(compiling, "compiled", lambda function: function)
    monkeypatch.setattr(compiling, "_chosen", "on")
    monkeypatch.setattr(flex, "_compiled", lambda: flex._attend)
    decoders = pair(model, FLEX)
    assert decoders[1]._compiled is not None
    talk(decoders, random.Random(0), 25)


@long
def test_compiled_layers_compute_what_their_modules_do_and_are_compiled_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiling, "_chosen", "on")
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    usual, decoder = pair(qwen3, FLEX)
    try:
        for size in (1, 4, 16, 64):
            decoder._forward_of(size, has_media=True)
        talk((usual, decoder), random.Random(0), 30)
        counted = dict(torch._dynamo.utils.counters["stats"])
        talk((usual, decoder), random.Random(0), 30)
        assert dict(torch._dynamo.utils.counters["stats"]) == counted
    finally:
        torch._dynamo.reset()
        flex._compiled.cache_clear()
