"""No forward has more rows than the largest shape that is captured, whoever feeds the decoder at once."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention as torch_flex

from inference_service.device import flex
from inference_service.device.graph import SIZES
from inference_service.device.paged import AttentionBackend
from inference_service.device.rows import Rows
from inference_service.engine.batch import decoder as decoders
from inference_service.engine.batch.context import Context, Memory
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.speech import Speaker, SpeechJob, SpeechState
from inference_service.engine.runtime import Runtime
from inference_service.families import antiphon_mini
from inference_service.interface.setups import Window, WindowMode
from inference_service.kernels.selection import usable
from tests.inference_service.engine.batch.test_packed import HIDDEN, qwen3
from tests.inference_service.engine.support import tiny
from tests.inference_service.engine.support.shipped import shipped

LARGEST = decoders.MOST_ROWS
FLEX = AttentionBackend("flex", "", flex.over_contexts, all_rows=True)
IDS = 50
SLOTS = 3
CAPACITY = 160
MOST = 64
"""Instead of 1,024 rows, which take long in eager attention."""
JOBS = 4
"""Of 28 rows each when replayed: more than fit into one forward."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(decoders, "_ROWS", tuple(size for size in SIZES if size <= MOST))
    monkeypatch.setattr(decoders, "MOST_ROWS", MOST)


def language(*, in_steps: bool, slots: int = SLOTS, capacity: int = CAPACITY) -> PackedDecoder:
    """Return a decoder with the same weights each time, as on a GPU with `in_steps`."""
    torch.manual_seed(0)
    backbone, embeddings = qwen3(), nn.Embedding(IDS, HIDDEN)
    backend = FLEX if in_steps else None
    return PackedDecoder(backbone, slots, capacity, embeddings=embeddings, in_steps=in_steps, backend=backend)


def ids(count: int, seed: int = 0) -> list[int]:
    generator = np.random.default_rng(seed)
    return [int(it) for it in generator.integers(0, IDS, count)]


def fed(monkeypatch: pytest.MonkeyPatch, decoder: PackedDecoder) -> list[int]:
    """Return a list to which the numbers of rows are added that the layers of a decoder are given."""
    counts = list[int]()
    compute = decoder.backbone_over

    def counted(embeds: Tensor, *others: object) -> Tensor:
        counts.append(len(embeds))
        return compute(embeds, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(decoder, "backbone_over", counted)
    return counts


def runtime_over(decoder: PackedDecoder) -> Runtime:
    return Runtime(antiphon_mini.components(*tiny.model()).info, decoder, nn.Linear(HIDDEN, IDS))


def contexts_of(decoder: PackedDecoder) -> list[Context]:
    """Return contexts with a window that has dropped what was said, each with an own prompt."""
    window = Window(WindowMode.CONTEXT, high_tokens=120, low_tokens=100, max_units=3, remembered_tokens=40)
    made = []
    for slot in range(SLOTS):
        context = Context(decoder, slot, window, CAPACITY)
        decoder.forward([context.segment(Rows.of_ids(ids(10 + slot, slot)))])
        context.advance(10 + slot)
        context.end_prompt()
        context.memory = Memory([1, 2], [3], context.prompt)
        context.memory.take(ids(40, 9 + slot), window.remembered_tokens)
        context.to_rebuild = context.memory.tail
        context.prompt += len(context.to_rebuild)
        made.append(context)
    return made


def held(contexts: list[Context], length: Callable[[Context], int]) -> list[Tensor]:
    """Return keys of the first entries of each context."""
    return [context.decoder.cache.held(context.slot, 0, length(context))[0] for context in contexts]


def test_largest_shape_is_what_memory_is_kept_for_and_what_a_tick_may_feed() -> None:
    assert LARGEST == Runtime.budget == 1024


@pytest.mark.parametrize("in_steps", [True, False])
def test_rebuild_of_three_windows_feeds_no_more_rows_than_the_largest_shape(
    in_steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, alone = language(in_steps=in_steps), language(in_steps=False)
    together, single = contexts_of(decoder), contexts_of(alone)
    counts = fed(monkeypatch, decoder)

    runtime_over(decoder).rebuild(together)

    for context in single:
        alone.forward([context.rebuild()])
    assert sum(len(context.to_rebuild) for context in together) > MOST
    if in_steps:
        assert counts
        assert set(counts) <= {size for size, _ in decoder._forwards}
    assert max(counts, default=0) <= MOST
    for one, other in zip(
        *(held(it, lambda context: context.prompt) for it in (together, single)), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_settle_of_many_contexts_feeds_no_more_rows_than_the_largest_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = language(in_steps=True)
    contexts = [Context(decoder, slot, Window(), CAPACITY) for slot in range(SLOTS)]
    for context in contexts:
        context.pending = ids(27, context.slot)
    counts = fed(monkeypatch, decoder)
    runtime_over(decoder).settle(contexts)
    assert [context.length for context in contexts] == [27] * SLOTS
    assert counts == [MOST, 32]


@pytest.mark.parametrize("size", [1, 9, 64])
def test_segment_that_is_cut_gives_the_hidden_states_of_a_whole_one(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments of one row and of many, one of them longer than a forward, with arrays beside."""
    lengths = [size, 150, 70]
    decoder, alone = (language(in_steps=it, capacity=160) for it in (True, False))
    segments = [Segment(slot, 0, 0, Rows.of_ids(ids(n, slot))) for slot, n in enumerate(lengths)]
    counts = fed(monkeypatch, decoder)
    others = np.arange(7)

    last, (there,) = decoder.last(segments, others)
    whole = decoder.forward(segments)

    wanted = [alone.forward([segment])[0] for segment in segments]
    assert there.tolist() == others.tolist()
    assert max(counts) == MOST
    torch.testing.assert_close(last, torch.stack([it[-1] for it in wanted]), atol=1e-4, rtol=1e-4)
    assert [len(it) for it in whole] == lengths
    for one, other in zip(whole, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not usable("native"), reason="without kernels nothing is promised to the last bit")
def test_segments_that_are_cut_are_bit_exact_with_kernels_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    model = shipped().components
    cut, whole = (
        PackedDecoder(model.language, SLOTS, CAPACITY, embeddings=model.embeddings, in_steps=False)
        for _ in range(2)
    )
    assert cut._layers is not None
    segments = [Segment(slot, 0, 0, Rows.of_ids(ids(n, slot))) for slot, n in enumerate((3, 150, 70))]

    found, _ = cut.last(segments)
    monkeypatch.setattr(decoders, "MOST_ROWS", 10_000)
    wanted, _ = whole.last(segments)

    assert torch.equal(found, wanted)
    for slot, segment in enumerate(segments):
        rows = (it.cache.held(slot, 0, len(segment.rows)) for it in (cut, whole))
        assert all(torch.equal(one, other) for one, other in zip(*rows, strict=True))


def speaker(*, in_steps: bool) -> Speaker:
    head, backend = tiny.model()[0].tts, FLEX if in_steps else None
    return Speaker(head, JOBS, 128, 1, in_steps=in_steps, backend=backend)


def job(slot: int, words: int, recorded: tuple[int, ...] | None = None) -> SpeechJob:
    state, hidden = SpeechState(slot, Noise(slot)), torch.zeros(words, tiny.raw_config()["hidden_size"])
    return SpeechJob(
        *(state, ids(words, slot), hidden),
        may_be_short=False,
        temperature=0.0,
        noise=state.noise,
        recorded=recorded,
    )


def test_replay_of_many_units_feeds_no_more_rows_than_the_largest_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by, alone = (speaker(in_steps=it) for it in (True, False))
    together, single = (
        [job(slot, 3, tuple(it % tiny.CODES for it in range(slot, slot + 25))) for slot in range(JOBS)]
        for _ in range(2)
    )
    counts = fed(monkeypatch, by.decoder)

    by.replay(together)

    for one in single:
        alone.replay([one])
    assert len(counts) == 2
    assert max(counts) == MOST
    assert [it.codes for it in together] == [it.codes for it in single]
    assert [it.state.length for it in together] == [it.state.length for it in single]
    assert sum(it.state.length for it in together) > MOST
    for slot, one in enumerate(single):
        rows = (it.decoder.cache.held(slot, 0, one.state.length)[0] for it in (by, alone))
        torch.testing.assert_close(*rows, atol=1e-4, rtol=1e-4)


def test_first_codes_of_many_units_feed_no_more_rows_than_the_largest_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by, alone = (speaker(in_steps=it) for it in (True, False))
    counts = fed(monkeypatch, by.decoder)
    steps = by.forward([job(slot, 20) for slot in range(JOBS)])
    wanted = [alone.forward([job(slot, 20)])[0] for slot in range(JOBS)]
    assert max(counts) == MOST
    assert [it.codes for it in steps] == [it.codes for it in wanted]
