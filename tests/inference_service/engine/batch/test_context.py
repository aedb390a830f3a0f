"""The context of a session in its slot: positions, carried tokens, the window, and going back."""

import random

import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3Model

from inference_service.device.rows import Rows
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.decoder import PackedDecoder
from inference_service.interface.setups import Window, WindowMode
from tests.inference_service.engine.batch.test_packed import feed

HIDDEN = 16
PROMPT = 9
BASIC = Window(WindowMode.BASIC, high_tokens=70, low_tokens=45)
TERMINATORS = [1, 2]


@pytest.fixture
def decoder() -> PackedDecoder:
    torch.manual_seed(0)
    model = Qwen3Model(
        Qwen3Config(
            vocab_size=4, hidden_size=HIDDEN, intermediate_size=16, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, head_dim=8,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        )
    )  # fmt: skip
    return PackedDecoder(model.eval(), 2, 128)


def rows(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))


def opened(decoder: PackedDecoder, window: Window = BASIC, slot: int = 0) -> Context:
    context = Context(decoder, slot, window, limit=100)
    feed(context, rows(PROMPT))
    context.end_prompt()
    return context


def unit(context: Context, length: int, seed: int = 0) -> int:
    """A unit of `length` rows beside its terminators; how many old units the window then dropped."""
    feed(context, rows(len(context.carry()) + length, seed))
    context.end_unit(TERMINATORS)
    if context.must_slide:
        feed(context, rows(len(context.carry()), seed))
    return context.slide()


def test_window_bounds_the_context_for_ever(decoder: PackedDecoder) -> None:
    context = opened(decoder)
    rng, dropped, dropping = random.Random(1), 0, 0
    for number in range(300):
        before, length = context.tokens, rng.randint(1, 15)
        now = unit(context, length, number)
        if now:
            dropping += 1
            assert before + length + 2 > BASIC.high_tokens, "only above high"
            assert BASIC.low_tokens - 17 < context.tokens <= BASIC.low_tokens, "no more than it has to"
        dropped += now
        assert context.tokens <= BASIC.high_tokens
        assert context.tokens == PROMPT + sum(context.units)

    assert dropping > 9
    assert dropped == 300 - len(context.units)


def test_last_unit_is_kept_even_if_it_alone_is_too_long(decoder: PackedDecoder) -> None:
    context = opened(decoder)
    unit(context, 5)
    assert unit(context, 80) == 1
    assert context.units == [82]


def test_without_a_window_nothing_is_dropped_and_there_is_room_up_to_the_limit(
    decoder: PackedDecoder,
) -> None:
    context = opened(decoder, Window())
    assert context.has_room_for(100 - PROMPT)
    assert not context.has_room_for(100 - PROMPT + 1)
    assert opened(decoder, BASIC, slot=1).has_room_for(1000)
    assert [unit(context, 8) for _ in range(9)] == [0] * 9
    assert context.tokens == PROMPT + 90


def test_positions_go_on_over_drops(decoder: PackedDecoder) -> None:
    context = opened(decoder)
    for number in range(1, 40):
        unit(context, 8)
        assert context.segment(Rows.of(rows(1))).position == PROMPT + 10 * number - len(context.pending)


def test_prompt_keys_move_with_the_window_without_drift_and_its_values_stay(decoder: PackedDecoder) -> None:
    context = opened(decoder)
    keys, values = (it.clone() for it in decoder.cache.held(0, 0, PROMPT))
    dropped = number = 0
    while dropped < 300:
        dropped, number = dropped + unit(context, 8, number), number + 1
    assert torch.equal(decoder.cache.held(0, 0, PROMPT)[1], values)
    for moved, own in zip(decoder.cache.held(0, 0, PROMPT)[0], keys, strict=True):
        assert not torch.allclose(moved, own, atol=1e-2)
        torch.testing.assert_close(decoder.rotate(moved, -context.dropped), own, atol=1e-3, rtol=0)


def test_other_slots_are_untouched_by_a_drop(decoder: PackedDecoder) -> None:
    context, other = opened(decoder), opened(decoder, slot=1)
    unit(other, 20)
    before = [tensor.clone() for tensor in decoder.cache.held(1, 0, other.length)]
    while not unit(context, 10):
        pass
    after = decoder.cache.held(1, 0, other.length)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_carried_tokens_count_before_they_are_fed(decoder: PackedDecoder) -> None:
    context = opened(decoder)
    feed(context, rows(5))
    context.end_unit(TERMINATORS)
    assert (context.tokens, context.length) == (PROMPT + 7, PROMPT + 5)
    assert context.carry() == TERMINATORS
    assert context.pending == []


def test_nothing_is_dropped_while_tokens_are_pending(decoder: PackedDecoder) -> None:
    context = opened(decoder)
    unit(context, 30)
    feed(context, rows(len(context.carry()) + 35))
    context.end_unit(TERMINATORS)
    assert context.must_slide
    assert context.slide() == 0
    feed(context, rows(len(context.carry())))
    assert context.slide() == 1


def test_rewind_discards_unit_with_nan_in_its_slot(decoder: PackedDecoder) -> None:
    spoiled, spared = opened(decoder), opened(decoder, slot=1)
    unit(spoiled, 6)
    unit(spared, 6)
    carried = spoiled.carry()
    feed(spoiled, torch.full((12, HIDDEN), torch.nan))
    spoiled.rewind()
    assert spoiled.pending == carried == TERMINATORS
    assert spoiled.tokens == spared.tokens
    next_rows = rows(len(spoiled.carry()) + 5, seed=3)
    spared.carry()
    torch.testing.assert_close(feed(spoiled, next_rows), feed(spared, next_rows), atol=1e-6, rtol=0)
