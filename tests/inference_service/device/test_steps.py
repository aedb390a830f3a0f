"""Rows that come alone attend in one call and in a few shapes: to the same, and to nothing of others."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference_service.device import paged
from inference_service.device.graph import SIZES, size_for
from inference_service.device.paged import (
    AttentionBackend,
    Contexts,
    choose_backend,
    gathered,
    has_block_tables,
    varlen,
)
from inference_service.device.rows import Rows
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.engine.batch.pages import PAGE
from inference_service.interface.setups import Window, WindowMode
from tests.inference_service.engine.batch.test_packed import HIDDEN, llama, mistral, qwen3
from tests.support.long import seeds

SLOTS, CAPACITY, IDS = 5, 160, 50
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
RUNNING = [
    *(("gathered", device) for device in DEVICES),
    *(
        ("varlen", device)
        for device in DEVICES
        if choose_backend(torch.device(device), torch.bfloat16, 4, 2, 8).name == "varlen"
    ),
]
Made = Callable[[], PreTrainedModel]


def pair(
    model: Made, backend: AttentionBackend | None = None, *, has_embeddings: bool = True
) -> tuple[PackedDecoder, PackedDecoder]:
    """The same weights by session, and in steps that attend that way."""
    torch.manual_seed(0)
    backbone = model()
    embeddings = nn.Embedding(IDS, HIDDEN) if has_embeddings else None
    usual = PackedDecoder(backbone, SLOTS, CAPACITY, embeddings=embeddings, in_steps=False)
    return usual, PackedDecoder(
        backbone, SLOTS, CAPACITY, embeddings=embeddings, in_steps=True, backend=backend
    )


def contexts_of(
    decoders: tuple[PackedDecoder, PackedDecoder], slots: int
) -> dict[int, tuple[Context, Context]]:
    """Empty contexts of both decoders in each slot."""
    made = ((Context(it, slot, Window(), 100) for it in decoders) for slot in range(slots))
    return {slot: (one, other) for slot, (one, other) in enumerate(made)}


def near(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-5)


def rows(rng: random.Random) -> Rows:
    """One id, or some; or media."""
    count = rng.choice([1, 1, 1, 1, rng.randint(2, 20)])
    if rng.random() < 0.7:
        return Rows.of_ids([rng.randrange(IDS) for _ in range(count)])
    return Rows.of(torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(rng.randrange(99))))


def talk(decoders: tuple[PackedDecoder, PackedDecoder], rng: random.Random, rounds: int) -> int:
    """Run contexts of any length that begin alike, slide, are cut and end; return how many slid."""
    window = Window(WindowMode.BASIC, high_tokens=90, low_tokens=50)
    present: dict[int, tuple[Context, Context]] = {}
    slides = 0
    for _ in range(rounds):
        slot = rng.randrange(SLOTS)
        if slot not in present:
            present[slot] = Context(decoders[0], slot, window, 150), Context(decoders[1], slot, window, 150)
            prompt = Rows.of_ids([7] * rng.choice([20, 35]))
            _feed(decoders, {slot: present[slot]}, {slot: prompt}, begins=True)
            for context in present[slot]:
                context.end_prompt()
        elif rng.random() < 0.05:
            del present[slot]
            for decoder in decoders:
                decoder.cache.clear(slot)
        given = {slot: rows(rng) for slot in rng.sample(sorted(present), rng.randint(0, len(present)))}
        if given:
            _feed(decoders, present, given)
        for slot in given:
            for context in present[slot]:
                context.end_unit([1, 2])
            if present[slot][0].must_slide:
                carried = Rows.of_ids(present[slot][0].carry())
                present[slot][1].carry()
                _feed(decoders, present, {slot: carried})
                dropped = present[slot][0].slide()
                assert dropped == present[slot][1].slide()
                slides += dropped > 0
            else:
                for context in present[slot]:
                    context.pending = []
                    context._unit_start = context.tokens
                    context.units[-1] -= 2
    return slides


@pytest.mark.parametrize("model", [qwen3, llama, mistral])
@pytest.mark.parametrize("seed", seeds(0, 1, 2))
def test_rows_in_steps_attend_as_in_forwards_by_session(model: Made, seed: int) -> None:
    """Contexts of any length that begin alike, slide, are cut and come to an end."""
    decoders = pair(model)
    talk(decoders, random.Random(seed), 120)
    assert decoders[1]._steps, "else nothing was made in steps"


def _feed(
    decoders: tuple[PackedDecoder, PackedDecoder],
    contexts: dict[int, tuple[Context, Context]],
    given: dict[int, Rows],
    *,
    begins: bool = False,
) -> None:
    hidden = []
    for which, decoder in enumerate(decoders):
        pieces = {slot: contexts[slot][which].begin(fed) if begins else fed for slot, fed in given.items()}
        segments = [contexts[slot][which].segment(fed) for slot, fed in pieces.items()]
        hidden.append(decoder.forward(segments))
        for slot, fed in pieces.items():
            contexts[slot][which].advance(len(fed))
    for one, other in zip(*hidden, strict=True):
        near(other, one)


@pytest.mark.parametrize("present", [1, 3, 5])
def test_padding_rows_of_step_change_no_session_pages(present: int) -> None:
    """Every row that is nobody's, and every page of those who are not in the step, is not a number."""
    usual, decoder = pair(qwen3)
    contexts = contexts_of((usual, decoder), SLOTS)
    for slot, both in contexts.items():
        _feed((usual, decoder), {slot: both}, {slot: Rows.of_ids([slot + 1] * (slot * 7 + 3))})
    cache = decoder.cache
    for slot in range(present, SLOTS):
        for part in cache.rows(cache.cells(slot, 0, 1)[0] // PAGE * PAGE, PAGE):
            part.fill_(torch.nan)
    before = cache.keys.clone(), cache.values.clone()

    given = {slot: Rows.of_ids([9]) for slot in range(present)}
    _feed((usual, decoder), contexts, given)

    lengths = [contexts[slot][1].length for slot in given]
    own = {int(cache.cells(slot, lengths[slot] - 1, lengths[slot])[0]) for slot in given}
    spare = set(range(cache.pool.pages * PAGE, (cache.pool.pages + 1) * PAGE))
    for slab, old in zip((cache.keys, cache.values), before, strict=True):
        moved = ((slab != old) & ~(slab.isnan() & old.isnan())).any(dim=3).any(dim=1).any(dim=0)
        assert set(moved.nonzero().flatten().tolist()) <= own | spare
        assert own <= set(moved.nonzero().flatten().tolist())


def test_numbers_that_went_bad_and_were_taken_back_spoil_nothing_that_comes() -> None:
    usual, decoder = pair(qwen3)
    contexts = Context(usual, 0, Window(), 100), Context(decoder, 0, Window(), 100)
    _feed((usual, decoder), {0: contexts}, {0: Rows.of_ids([3] * 19)})
    for context in contexts:
        context.carry()
        bad = Rows.of(torch.full((6, HIDDEN), torch.nan))
        context.decoder.forward([context.segment(bad)])
        context.advance(6)
        context.rewind()
    for token in (4, 5, 6):
        _feed((usual, decoder), {0: contexts}, {0: Rows.of_ids([token])})
    assert contexts[1].decoder.cache.keys.isfinite().all()


def pages() -> tuple[Tensor, Tensor, Tensor, Contexts]:
    """Queries, keys, values and contexts of four rows."""
    table = torch.arange(12, dtype=torch.int32).view(4, 3)
    ends = torch.tensor([1, PAGE, 2 * PAGE + 3, 3 * PAGE], dtype=torch.int32)
    return torch.randn(4, 4, 8), *torch.randn(2, 2, 12 * PAGE, 8), Contexts(table, ends)


@pytest.mark.parametrize("seed", seeds(0, *range(1, 8)))
@pytest.mark.parametrize(("way", "device"), RUNNING)
def test_every_way_with_random_pages_lengths_and_heads_sees_its_own_context(
    way: str, device: str, seed: int
) -> None:
    """Rows of no context have huge keys and values, which `gathered` bears to be no numbers.

    A cache keeps its keys finite, and for `varlen`, which multiplies what it masks by zero, its values too.
    """
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype, tolerance = (torch.float32, 2e-5) if device == "cpu" else (torch.bfloat16, 0.03)
    attend = {"gathered": gathered, "varlen": varlen}[way]
    for _ in range(12):
        kv, groups, head = rng.choice([1, 2, 4]), rng.choice([1, 2, 4]), rng.choice([16, 64, 128])
        count, width = rng.randint(1, 9), rng.randint(1, 6)
        pages = count * width + rng.randint(0, 5)
        table = torch.tensor(rng.sample(range(pages), count * width), dtype=torch.int32).view(count, width)
        ends = torch.tensor([rng.randint(1, width * PAGE) for _ in range(count)], dtype=torch.int32)
        cells = (table.long()[:, :, None] * PAGE + torch.arange(PAGE)).flatten(1)
        other = torch.nan if way == "gathered" else 1e4
        keys, values = (torch.full((kv, pages * PAGE, head), it) for it in (1e4, other))
        for row, end in zip(cells, ends.tolist(), strict=True):
            for slab in (keys, values):
                slab[:, row[:end]] = torch.randn(kv, end, head, generator=generator)
        queries = torch.randn(count, kv * groups, head, generator=generator)
        window, scale = rng.choice([None, 1, 9, rng.randint(1, width * PAGE)]), rng.choice([None, 0.7])
        given = [it.to(device, dtype) for it in (queries, keys, values)]

        seen = attend(*given, Contexts(table.to(device), ends.to(device)), scale, window).float().cpu()

        for row, (own, end) in enumerate(zip(cells, ends.tolist(), strict=True)):
            begin = 0 if window is None else max(0, end - window)
            k, v = (slab[:, own[begin:end]].repeat_interleave(groups, 0) for slab in (keys, values))
            alone = nn.functional.scaled_dot_product_attention(queries[row][:, None], k, v, scale=scale)
            torch.testing.assert_close(seen[row], alone[:, 0], atol=tolerance, rtol=tolerance)


def test_window_that_slides_needs_no_shape_beyond_those_captured_at_start() -> None:
    """A shape that is not captured at start would be captured in service, which stops every session."""
    usual, decoder = pair(qwen3)
    decoder.backend = AttentionBackend("varlen", "", gathered)  # a GPU's backend, computed as on the CPU
    decoder.capture()
    captured = set(decoder._steps)
    assert talk((usual, decoder), random.Random(1), 90) > 1
    assert set(decoder._steps) == captured


def test_varlen_attention_never_splits_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The split depends on the longest context of the call, so the same row would vary."""
    queries, keys, values, contexts = pages()
    asked: list[dict[str, object]] = []

    def attend(queries: Tensor, *others: object, **named: object) -> Tensor:
        asked.append(named)
        return queries

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", attend)
    varlen(queries, keys, values, contexts, None, None)

    assert asked[0]["num_splits"] == 1


@pytest.mark.parametrize(
    ("installed", "helps", "name", "calls"),
    [
        (True, True, "varlen", ["FA3"]),
        (True, False, "gathered", ["FA3", "restored"]),
        (False, True, "gathered", []),
    ],
)
def test_flash_attention_3_is_activated_where_pages_of_16_rows_need_it(
    monkeypatch: pytest.MonkeyPatch, installed: bool, helps: bool, name: str, calls: list[str]
) -> None:
    """On stand-ins: FlashAttention 2 refuses pages of 16 rows, and nothing runs on a GPU here."""
    asked: list[str] = []
    monkeypatch.setattr(paged, "find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr("torch.nn.attention.activate_flash_attention_impl", asked.append)
    monkeypatch.setattr("torch.nn.attention.restore_flash_attention_impl", lambda: asked.append("restored"))
    monkeypatch.setattr(paged, "has_block_tables", lambda: True)
    monkeypatch.setattr(paged, "_why_not", lambda *given: "" if helps and asked else "needs pages of 256")
    assert choose_backend(torch.device("cuda:0"), torch.bfloat16, 4, 2, 8).name == name
    assert asked == calls


def test_attention_way_is_reported_with_its_reason() -> None:
    backend = choose_backend(torch.device("cpu"), torch.float32, 4, 2, 8)
    assert (backend.name, backend.why) == ("gathered", "it is a CPU")
    assert isinstance(has_block_tables(), bool)


def test_size_of_a_step_is_the_next_of_a_few() -> None:
    assert [size_for(count) for count in (1, 2, 3, 64, 65, 128, 129)] == [1, 2, 4, 64, 128, 128, None]
    assert SIZES == (1, 2, 4, 8, 16, 32, 64, 128)


def test_more_rows_than_the_largest_step_are_one_forward_all_the_same() -> None:
    torch.manual_seed(0)
    backbone, embeddings = qwen3(), nn.Embedding(IDS, HIDDEN)
    count = SIZES[-1] + 1
    hidden = [
        PackedDecoder(backbone, count, 4, embeddings=embeddings, in_steps=in_steps).forward(
            [Segment(slot, 0, 0, Rows.of_ids([slot % IDS])) for slot in range(count)]
        )
        for in_steps in (False, True)
    ]
    near(torch.cat(hidden[1]), torch.cat(hidden[0]))


@pytest.mark.parametrize("is_media_added", [False, True])
def test_steps_made_ahead_change_no_context_and_serve_media_beside_ids(is_media_added: bool) -> None:
    """Rows of media alone, of ids alone, and sums of both, each the only row of its session."""
    usual, decoder = pair(qwen3)
    contexts = contexts_of((usual, decoder), SLOTS)
    _feed((usual, decoder), contexts, {slot: Rows.of_ids([slot + 1] * (slot + 2)) for slot in contexts})
    own = slice(decoder.cache.pool.pages * PAGE)
    before = decoder.cache.keys[:, :, own].clone()
    decoder.capture()
    assert torch.equal(decoder.cache.keys[:, :, own], before), "a step made ahead changes no context"
    made = dict(decoder._steps)
    generator = torch.Generator().manual_seed(0)

    for count in (1, 3, SLOTS):
        media = [Rows.of(torch.randn(1, HIDDEN, generator=generator)) for _ in range(count)]
        if is_media_added:
            media = [it.plus([7]) for it in media[:-1]] + [Rows.of_ids([8])]
        _feed((usual, decoder), contexts, dict(enumerate(media)))

    assert decoder._steps == made, "a session would have waited for one"


def test_bad_media_of_a_step_spoils_no_step_that_comes() -> None:
    """Rows that fill up a later step write no NaN to the spare page, which all contexts read."""
    decoders = pair(qwen3)
    contexts = contexts_of(decoders, 4)
    good, bad = (Rows.of(torch.full((1, HIDDEN), number)) for number in (1.0, torch.nan))
    for which, decoder in enumerate(decoders):
        last = contexts[3][which].segment(bad)
        decoder.forward([*(contexts[slot][which].segment(good) for slot in range(3)), last])
        for slot in range(3):
            contexts[slot][which].advance(1)
        decoder.cache.clear(3)
    _feed(decoders, contexts, dict.fromkeys(range(3), good))
