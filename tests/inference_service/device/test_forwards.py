"""Forwards of prompts and single rows have a few shapes, and compute what each session would alone.

Attention is FlexAttention, eagerly: see `test_flex`.
"""

import random

import pytest
import torch
from torch import nn
from torch.nn.attention import flex_attention as torch_flex

from inference_service.device import common_layers, compiling, flex
from inference_service.device.paged import AttentionBackend
from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.engine.batch.pages import PAGE
from tests.inference_service.device.test_steps import CAPACITY, IDS, SLOTS, Made, _feed, contexts_of, talk
from tests.inference_service.engine.batch.test_packed import HIDDEN, llama, mistral, qwen3
from tests.support.long import long, seeds

FLEX = AttentionBackend("flex", "", flex.over_contexts, all_rows=True)


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def pair(model: Made, *, has_embeddings: bool = True) -> tuple[PackedDecoder, PackedDecoder]:
    """The same weights by session, and in forwards of a few shapes."""
    torch.manual_seed(0)
    backbone = model()
    embeddings = nn.Embedding(IDS, HIDDEN) if has_embeddings else None
    usual = PackedDecoder(backbone, SLOTS, CAPACITY, embeddings=embeddings, in_steps=False)
    return usual, PackedDecoder(backbone, SLOTS, CAPACITY, embeddings=embeddings, in_steps=True, way=FLEX)


@torch.inference_mode()
@pytest.mark.parametrize("model", [qwen3, llama, mistral])
@pytest.mark.parametrize("seed", seeds(0, 1, 2))
@pytest.mark.sample("0-qwen3")
def test_rows_in_joint_forwards_attend_as_in_forwards_by_session(model: Made, seed: int) -> None:
    decoders = pair(model)
    talk(decoders, random.Random(seed), 60)
    assert decoders[1]._forwards
    assert not decoders[1]._steps


@torch.inference_mode()
@pytest.mark.long
def test_window_that_slides_leaves_entries_where_they_are() -> None:
    """With an offset in the first page: no other shape comes up, and nothing is moved."""
    decoders = pair(qwen3)
    slides = talk(decoders, random.Random(1), 90)
    assert slides > 1
    tables = decoders[1].cache._tables
    assert any(table.offset for table in tables)


@torch.inference_mode()
@pytest.mark.long
def test_no_shape_comes_up_that_was_not_captured() -> None:
    usual, decoder = pair(qwen3)
    spare = decoder.cache.pool.pages * PAGE
    before = decoder.cache.keys[:, :, :spare].clone()
    decoder.capture()
    captured = set(decoder._forwards)
    assert torch.equal(decoder.cache.keys[:, :, :spare], before)
    talk((usual, decoder), random.Random(0), 40)
    assert set(decoder._forwards) == captured


@torch.inference_mode()
def test_last_rows_and_other_arrays_come_with_one_upload() -> None:
    decoder = pair(qwen3)[1]
    segments = [Segment(slot, 0, 0, Rows.of_ids(list(range(1, 2 + 3 * slot)))) for slot in range(SLOTS)]
    others = torch.arange(7).numpy()
    whole = decoder.forward(segments)
    last, (there,) = decoder.last(segments, others)
    torch.testing.assert_close(last, torch.stack([it[-1] for it in whole]))
    assert there.tolist() == others.tolist()


@torch.inference_mode()
def test_rows_made_of_media_alone_need_no_embeddings() -> None:
    usual, decoder = pair(llama, has_embeddings=False)
    generator = torch.Generator().manual_seed(0)
    contexts = contexts_of((usual, decoder), 3)
    for count in (9, 1, 3):
        given = {slot: Rows.of(torch.randn(count + slot, HIDDEN, generator=generator)) for slot in contexts}
        _feed((usual, decoder), contexts, given)


@torch.inference_mode()
@pytest.mark.parametrize("model", [qwen3, llama, mistral])
@pytest.mark.sample("qwen3")
def test_common_layers_compute_what_their_modules_do(model: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiler: the functions that it is given."""
    monkeypatch.setattr(common_layers, "compiled", lambda function: function)
    monkeypatch.setattr(compiling, "compiled", lambda function: function)
    monkeypatch.setattr(compiling, "_chosen", "on")
    monkeypatch.setattr(flex, "_compiled", lambda: flex._attend)
    decoders = pair(model)
    assert decoders[1]._compiled is not None
    talk(decoders, random.Random(0), 25)


@long
@torch.inference_mode()
def test_compiled_layers_compute_what_their_modules_do_and_are_compiled_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiling, "_chosen", "on")
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    usual, decoder = pair(qwen3)
    try:
        for size in (1, 4, 16, 64):
            decoder._forward_of(size, has_made=True)
        talk((usual, decoder), random.Random(0), 30)
        counted = dict(torch._dynamo.utils.counters["stats"])
        talk((usual, decoder), random.Random(0), 30)
        assert dict(torch._dynamo.utils.counters["stats"]) == counted
    finally:
        torch._dynamo.reset()
        flex._compiled.cache_clear()
