"""A context of limited reach: endless, in a slot of limited size, and right."""

import random

import pytest
import torch
from transformers import MistralConfig, MistralModel

from inference_service.engine.batch.decoder import PackedDecoder
from inference_service.engine.batch.rolling import RollingContext
from inference_service.interface.setups import Window
from tests.inference_service.engine.batch.test_packed import HIDDEN, feed, mistral

REACH, SLACK = 7, 9


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_rolling_context_compute_as_in_one_pass(seed: int) -> None:
    torch.manual_seed(seed)
    rng = random.Random(seed)
    decoder = PackedDecoder(mistral(), 2, REACH + SLACK)
    alone = MistralModel(MistralConfig(**decoder.backbone.config.to_dict()))
    alone.load_state_dict(decoder.backbone.state_dict())
    alone.set_attn_implementation("eager")
    rows = torch.randn(150, HIDDEN)
    context = RollingContext(decoder, rng.randrange(2), Window(), REACH, reach=REACH)

    hidden, fed = list[torch.Tensor](), 0
    while fed < len(rows):
        hidden.append(feed(context, rows[fed : fed + rng.choice([1, 1, rng.randint(1, SLACK)])]))
        fed += len(hidden[-1])

    whole = alone.eval()(inputs_embeds=rows[None], use_cache=False).last_hidden_state[0]
    torch.testing.assert_close(torch.cat(hidden), whole, atol=1e-4, rtol=0)
    assert context.length + context.dropped == len(rows)


def test_tokens_are_what_the_next_row_looks_back_on() -> None:
    decoder = PackedDecoder(mistral(), 1, REACH + SLACK)
    context = RollingContext(decoder, 0, Window(), REACH, reach=REACH)
    sizes = []
    for _ in range(30):
        feed(context, torch.randn(1, HIDDEN))
        sizes.append(context.tokens)
    assert sizes == [*range(1, REACH + 1), *[REACH] * (30 - REACH)]


def test_restart_begins_at_the_first_position() -> None:
    torch.manual_seed(0)
    decoder = PackedDecoder(mistral(), 1, REACH + SLACK)
    context = RollingContext(decoder, 0, Window(), REACH, reach=REACH)
    rows = torch.randn(5, HIDDEN)
    first = feed(context, rows)
    for _ in range(40):
        feed(context, torch.randn(1, HIDDEN))
    context.restart()
    torch.testing.assert_close(feed(context, rows), first)
