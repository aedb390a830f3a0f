"""Tests of the prefix cache: a prefix is computed once, and only equal prefixes are shared."""

import random

import pytest
import torch
from torch import Tensor

from inference_service.device.rows import Rows
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.decoder import PackedDecoder
from inference_service.engine.batch.pages import PAGE
from inference_service.engine.batch.prefix import shared_names
from inference_service.interface.setups import Tenant, Window, WindowMode
from inference_service.media.memo import digest
from tests.inference_service.engine.batch.test_packed import HIDDEN, qwen3
from tests.inference_service.engine.support.left import is_clean

SLOTS, CAPACITY = 4, 160
PROMPT = 3 * PAGE + 5
"""Rows: three full pages and a beginning of one."""
NONE = Window()


@pytest.fixture
def decoder() -> PackedDecoder:
    torch.manual_seed(0)
    return PackedDecoder(qwen3(), SLOTS, CAPACITY)


def rows(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))


def named(embeds: Tensor) -> Rows:
    """Each row as one that goes by its content."""
    return Rows.join([Rows.of(row, digest(row.numpy())) for row in embeds.split(1)])


def feed(context: Context, embeds: Tensor | Rows) -> Tensor:
    """Hidden states [n, hidden]."""
    fed = named(embeds) if isinstance(embeds, Tensor) else embeds
    (hidden,) = context.decoder.forward([context.segment(fed)])
    context.advance(len(fed))
    return hidden


def begin(context: Context, prompt: Tensor) -> tuple[int, Tensor]:
    """How many rows of a prompt had to be fed, and the last one's hidden state."""
    waiting = context.begin(named(prompt))
    hidden = feed(context, waiting)
    context.end_prompt()
    return len(waiting), hidden[-1]


def test_session_with_prefix_cache_hit_feeds_only_new_rows_and_last_page(
    decoder: PackedDecoder,
) -> None:
    first, second, third = (Context(decoder, slot, NONE, CAPACITY) for slot in range(3))
    assert begin(first, rows(PROMPT))[0] == PROMPT
    fed, _ = begin(second, torch.cat([rows(PROMPT)[: 2 * PAGE + 3], rows(20, seed=1)]))
    assert (fed, second.found, second.length) == (3 + 20, 2 * PAGE, 2 * PAGE + 23)
    fed, _ = begin(third, rows(PROMPT)[: 2 * PAGE])
    assert fed == PAGE, "its last page is fed, as nobody keeps hidden states"


@pytest.mark.parametrize("company", [False, True])
def test_context_with_prefix_cache_hit_computes_as_when_alone(decoder: PackedDecoder, company: bool) -> None:
    contexts = [Context(decoder, slot, NONE, CAPACITY) for slot in range(3)]
    last = [begin(context, rows(PROMPT))[1] for context in contexts]
    alone = Context(PackedDecoder(decoder.backbone, 1, CAPACITY), 0, NONE, CAPACITY)
    own = [begin(alone, rows(PROMPT))[1]]
    for number, count in enumerate([1, 1, 7, 1, 12, 20, 1]):
        more = rows(count, seed=number)
        own += feed(alone, more)
        if company:
            hidden = decoder.forward([context.segment(Rows.of(more)) for context in contexts])
            for context in contexts:
                context.advance(count)
            last = [torch.cat([a.view(-1, HIDDEN), b]) for a, b in zip(last, hidden, strict=True)]
        else:
            last[2] = torch.cat([last[2].view(-1, HIDDEN), feed(contexts[2], more)])

    assert contexts[2].found == 3 * PAGE
    for hidden in last if company else last[2:]:
        torch.testing.assert_close(hidden, torch.stack(own), atol=1e-5, rtol=1e-5)


def test_prompt_that_comes_in_pieces_is_found_across_them(decoder: PackedDecoder) -> None:
    first, second = (Context(decoder, slot, NONE, CAPACITY) for slot in (0, 1))
    _, whole = begin(first, rows(PROMPT))
    fed = 0
    for piece in rows(PROMPT).split(11):
        waiting = second.begin(named(piece))
        fed += len(waiting)
        hidden = feed(second, waiting)
    assert fed + second.found == second.length == PROMPT
    assert second.found > PAGE
    torch.testing.assert_close(hidden[-1], whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("differs", [0, PAGE, 2 * PAGE + 3])
def test_nothing_is_shared_from_the_first_row_on_that_differs(decoder: PackedDecoder, differs: int) -> None:
    """Equal words before and behind another voice are not the same rows."""
    first, second = (Context(decoder, slot, NONE, CAPACITY) for slot in (0, 1))
    begin(first, rows(PROMPT))
    other = rows(PROMPT)
    other[differs] += 1e-3
    fed, hidden = begin(second, other)
    assert fed == PROMPT - differs // PAGE * PAGE
    alone = Context(PackedDecoder(decoder.backbone, 1, CAPACITY), 0, NONE, CAPACITY)
    torch.testing.assert_close(hidden, begin(alone, other)[1], atol=1e-5, rtol=1e-5)


def test_session_that_fails_in_the_middle_of_its_prompt_publishes_nothing(decoder: PackedDecoder) -> None:
    broken = Context(decoder, 0, NONE, CAPACITY)
    feed(broken, broken.begin(named(rows(PROMPT)))[: 2 * PAGE])
    decoder.cache.clear(0)
    assert begin(Context(decoder, 1, NONE, CAPACITY), rows(PROMPT))[0] == PROMPT
    assert decoder.cache.pool.idle == 0


def test_page_with_bad_numbers_is_not_published(decoder: PackedDecoder) -> None:
    first = Context(decoder, 0, NONE, CAPACITY)
    feed(first, first.begin(named(rows(PROMPT))))
    ((row, _),) = decoder.cache.runs(0, PAGE + 2, PAGE + 3)
    decoder.cache.values[1, 0, row, 0] = torch.inf
    first.end_prompt()
    assert begin(Context(decoder, 1, NONE, CAPACITY), rows(PROMPT))[0] == PROMPT - PAGE


def test_nothing_but_prompts_is_left_of_sessions_that_are_over(decoder: PackedDecoder) -> None:
    for slot in range(SLOTS):
        context = Context(decoder, slot, NONE, CAPACITY)
        begin(context, rows(PROMPT, seed=slot % 2))
        feed(context, rows(40, seed=9))
    for slot in range(SLOTS):
        decoder.cache.clear(slot)
    assert decoder.cache.pool.used == 0
    assert decoder.cache.pool.idle == 2 * 3
    held = decoder.cache.keys.abs().sum(dim=(0, 1, 3)).nonzero()
    assert len(held) == decoder.cache.values.abs().sum(dim=(0, 1, 3)).count_nonzero() == 6 * PAGE


def test_rows_never_written_are_never_read(decoder: PackedDecoder) -> None:
    """Every row never written is NaN, since other sessions may leave any values behind."""
    before = Context(decoder, 0, NONE, CAPACITY)
    begin(before, rows(PROMPT))
    decoder.cache.clear(0)
    kept = decoder.cache.pool.find(next(iter(decoder.cache.pool._known)))
    assert kept is not None
    written = decoder.cache.keys.abs().sum(dim=(0, 1, 3)) > 0
    for slab in (decoder.cache.keys, decoder.cache.values):
        slab[:, :, ~written] = torch.nan
    contexts = [Context(decoder, slot, NONE, CAPACITY) for slot in range(SLOTS)]
    for number, context in enumerate(contexts):
        begin(context, rows(PROMPT - number, seed=number % 2))
    for count in (1, 5, 1, 17):
        hidden = decoder.forward([context.segment(Rows.of(rows(count))) for context in contexts])
        for context in contexts:
            context.advance(count)

        assert all(bool(states.isfinite().all()) for states in hidden)


def test_numbers_that_go_bad_in_one_session_stay_there(decoder: PackedDecoder) -> None:
    """All see the prompt in the same pages, and one of them asks with what is no number."""
    contexts = [Context(decoder, slot, NONE, CAPACITY) for slot in range(3)]
    for context in contexts:
        begin(context, rows(PROMPT))
    own = feed(contexts[2], rows(20, seed=4))
    contexts[2].cut(PROMPT)

    bad = torch.full((20, HIDDEN), torch.nan)
    given = [rows(20, seed=3), bad, rows(20, seed=4)]
    hidden = decoder.forward([c.segment(Rows.of(it)) for c, it in zip(contexts, given, strict=True)])

    assert not hidden[1].isfinite().any()
    assert hidden[0].isfinite().all()
    torch.testing.assert_close(hidden[2], own, atol=1e-5, rtol=1e-5)
    for slot in range(3):
        decoder.cache.clear(slot)
    assert is_clean(decoder.cache)
    assert decoder.cache.keys.isfinite().all()


def test_window_leaves_a_shared_prompt_as_it_was(decoder: PackedDecoder) -> None:
    window = Window(WindowMode.BASIC, high_tokens=110, low_tokens=80)
    first, second = (Context(decoder, slot, window, CAPACITY) for slot in (0, 1))
    for context in (first, second):
        begin(context, rows(PROMPT))
    before = decoder.cache.held(1, 0, PROMPT)

    dropped = 0
    for number in range(40):
        feed(first, rows(len(first.carry()) + 8, seed=number))
        first.end_unit([1, 2])
        if first.must_slide:
            feed(first, rows(len(first.carry()), seed=number))
        dropped += first.slide()

    assert dropped > 20
    for held, own in zip(decoder.cache.held(1, 0, PROMPT), before, strict=True):
        assert torch.equal(held, own)
    assert begin(Context(decoder, 2, NONE, CAPACITY), rows(PROMPT))[0] == 5


def test_rows_written_into_a_shared_page_go_into_a_copy(decoder: PackedDecoder) -> None:
    first, second = (Context(decoder, slot, NONE, CAPACITY) for slot in (0, 1))
    for context in (first, second):
        begin(context, rows(PROMPT))
    before = decoder.cache.held(0, 0, PROMPT)
    second.cut(PAGE + 3)
    feed(second, rows(4, seed=5))
    for held, own in zip(decoder.cache.held(0, 0, PROMPT), before, strict=True):
        assert torch.equal(held, own)
    for held, own in zip(decoder.cache.held(1, 0, PAGE + 3), before, strict=True):
        assert torch.equal(held, own[:, :, : PAGE + 3])


@pytest.mark.parametrize("seed", range(4))
def test_sessions_that_come_and_go_never_run_out_of_pages(seed: int) -> None:
    """All slots full to the last row, prompts shared and not, over and over: strict reservation."""
    torch.manual_seed(seed)
    rng, decoder = random.Random(seed), PackedDecoder(qwen3(), SLOTS, CAPACITY)
    present: dict[int, Context] = {}
    for _ in range(60):
        slot = rng.randrange(SLOTS)
        if slot in present:
            context = present[slot]
            room = CAPACITY - context.length
            if room and rng.random() < 0.8:
                feed(context, rows(min(room, rng.randint(1, 90)), seed=rng.randrange(3)))
            else:
                decoder.cache.clear(slot)
                del present[slot]
        else:
            context = present[slot] = Context(decoder, slot, NONE, CAPACITY)
            begin(context, rows(rng.randint(1, CAPACITY), seed=rng.randrange(6)))
    pool = decoder.cache.pool
    assert pool.used + pool.idle + pool.free == pool.pages

    for slot, context in present.items():
        feed(context, rows(CAPACITY - context.length)) if context.length < CAPACITY else None
        assert len(decoder.cache.held(slot, 0, CAPACITY)[0][0, 0]) == CAPACITY


ONE, OTHER = Tenant(b"1" * 32), Tenant(b"2" * 32)


def of(tenant: Tenant, decoder: PackedDecoder, slot: int) -> Context:
    return Context(decoder, slot, NONE, CAPACITY, tenant)


def test_prefix_of_another_tenant_is_never_found(decoder: PackedDecoder) -> None:
    begin(of(ONE, decoder, 0), rows(PROMPT))
    stranger, own = of(OTHER, decoder, 1), of(ONE, decoder, 2)
    assert begin(stranger, rows(PROMPT))[0] == PROMPT
    assert begin(own, rows(PROMPT))[0] == PROMPT - 3 * PAGE
    assert set(decoder.cache.pages(0, PROMPT)[0]).isdisjoint(decoder.cache.pages(1, PROMPT)[0])


@pytest.mark.parametrize("length", range(PAGE, PROMPT, PAGE))
def test_prefix_guessed_a_page_at_a_time_is_computed_in_full(decoder: PackedDecoder, length: int) -> None:
    begin(of(ONE, decoder, 0), rows(PROMPT))
    guess = torch.cat([rows(PROMPT)[:length], rows(3, seed=5)])
    fed, _ = begin(of(OTHER, decoder, 1), guess)
    assert fed == len(guess)


def test_prefix_that_is_shared_is_found_by_all_and_what_follows_by_its_tenant_alone(
    decoder: PackedDecoder,
) -> None:
    shared = rows(2 * PAGE)
    decoder.cache.share(shared_names(named(shared)))
    whole = torch.cat([shared, rows(2 * PAGE, seed=1), rows(3, seed=2)])
    begin(of(ONE, decoder, 0), whole)
    assert begin(of(OTHER, decoder, 1), whole)[0] == len(whole) - 2 * PAGE
    assert begin(of(ONE, decoder, 2), whole)[0] == 3
    for slot in range(3):
        decoder.cache.clear(slot)
    moved = torch.cat([rows(PAGE, seed=9), shared, rows(3, seed=2)])
    begin(of(ONE, decoder, 0), moved)
    assert begin(of(OTHER, decoder, 1), moved)[0] == len(moved), "behind other words it is not shared"


def test_pages_of_a_busy_tenant_do_not_show_in_those_of_another(decoder: PackedDecoder) -> None:
    """Prime and probe: the watcher looks how much of its own prompts is still there."""
    begin(of(ONE, decoder, 0), rows(PROMPT))
    decoder.cache.clear(0)
    for seed in range(1, 40):
        begin(of(OTHER, decoder, 1), rows(PROMPT, seed=seed))
        decoder.cache.clear(1)
    assert decoder.cache.pool.free < SLOTS * PAGE, "else nothing had to be evicted"
    assert begin(of(ONE, decoder, 0), rows(PROMPT))[0] == PROMPT - 3 * PAGE
