"""Every way to look at a context gives what its session would compute alone, however its pages lie."""

import copy
import random
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.engine.batch.pages import PAGE
from inference_service.kernels.layers import Layers
from inference_service.kernels.selection import usable
from tests.inference_service.engine.batch.test_packed import HIDDEN, llama, mistral, qwen3

SESSIONS, LENGTH = 3, 6 * PAGE
SLOTS = 4 * SESSIONS
"""Most of them are there so that pages of others can lie between."""


def scattered(decoder: PackedDecoder, stretch: int) -> PackedDecoder:
    """With pages of others behind every `stretch` of pages, 0 for none. What nobody wrote is no number."""
    pool = decoder.cache.pool
    for page in range(stretch, pool.pages if stretch else 0, stretch + 1):
        pool.take(page)
    for slab in (decoder.cache.keys, decoder.cache.values):
        slab.fill_(torch.nan)
    return decoder


@pytest.fixture(params=["kernels", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With kernels of our own and, as where nothing was compiled, without."""
    name: str = request.param
    if name == "torch":
        monkeypatch.setattr(Layers, "fit", staticmethod(lambda backbone: False))
    elif not usable("native"):
        pytest.skip("no kernels: there was no compiler when the package was installed")
    return name


@pytest.mark.parametrize("stretch", [0, 1, 2, 3])
@pytest.mark.parametrize("build", [qwen3, llama, mistral])
@pytest.mark.usefixtures("way")
def test_context_is_seen_as_it_would_be_alone(build: Callable[[], PreTrainedModel], stretch: int) -> None:
    torch.manual_seed(stretch)
    model, rng = build(), random.Random(stretch)
    alone = copy.deepcopy(model)
    decoder = scattered(PackedDecoder(model, SLOTS, LENGTH), stretch)
    rows, done = torch.randn(SESSIONS, LENGTH, HIDDEN), [0] * SESSIONS
    hidden: list[list[torch.Tensor]] = [[] for _ in rows]

    while min(done) < LENGTH:
        batch = [i for i in range(SESSIONS) if done[i] < LENGTH and rng.random() < 0.9]
        counts = [min(rng.choice([1, 1, 2, rng.randint(1, 40)]), LENGTH - done[i]) for i in batch]
        segments = [
            Segment(i, done[i], done[i], Rows.of(rows[i, done[i] : done[i] + n]))
            for i, n in zip(batch, counts, strict=True)
        ]
        if not batch:
            continue
        last, _ = decoder.last(segments)
        for i, end, new in zip(batch, last, decoder.forward(segments), strict=True):
            torch.testing.assert_close(end, new[-1], atol=2e-5, rtol=1e-5)
            hidden[i].append(new)
            done[i] += len(new)

    own = alone(inputs_embeds=rows, use_cache=False).last_hidden_state
    torch.testing.assert_close(torch.stack([torch.cat(h) for h in hidden]), own, atol=2e-5, rtol=1e-5)
    assert not stretch or len(decoder.cache.runs(0, 0, LENGTH)) >= LENGTH // PAGE // stretch


@pytest.mark.usefixtures("way")
def test_numbers_of_half_size_are_weighed_in_full() -> None:
    torch.manual_seed(0)
    model = qwen3()
    rows = torch.randn(LENGTH, HIDDEN, dtype=torch.bfloat16)
    seen = []
    for stretch in (0, 3):
        decoder = scattered(PackedDecoder(copy.deepcopy(model).bfloat16(), SLOTS, LENGTH), stretch)
        hidden = decoder.forward([Segment(0, 0, 0, Rows.of(rows[:-1]))])
        hidden += decoder.forward([Segment(0, LENGTH - 1, LENGTH - 1, Rows.of(rows[-1:]))])
        assert (len(decoder.cache.runs(0, 0, LENGTH)) > 1) is bool(stretch)
        seen.append(torch.cat(hidden)[-1].float())

    whole = copy.deepcopy(model)(inputs_embeds=rows.float()[None], use_cache=False).last_hidden_state[0, -1]
    (own, parts) = ((it - whole).abs().max() for it in seen)
    assert parts < 2 * own + 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropped", [0, 5, PAGE], ids=["", "its first page begins later", "a page less"])
@pytest.mark.parametrize("build", [qwen3, llama, mistral])
@pytest.mark.usefixtures("way")
def test_a_crowd_sees_what_each_would_see_alone(
    build: Callable[[], PreTrainedModel], dropped: int, dtype: torch.dtype
) -> None:
    """Contexts of several lengths in pages that lie apart; what nobody wrote is no number."""
    torch.manual_seed(0)
    lengths = [LENGTH - 1, LENGTH - 2, LENGTH - 9, LENGTH - PAGE, LENGTH - PAGE - 3, 3, 5, 2]
    decoder = scattered(PackedDecoder(build().to(dtype), 3 * len(lengths), LENGTH), 3)
    rows = torch.randn(len(lengths), LENGTH, HIDDEN, dtype=dtype)
    segments = []
    for slot, length in enumerate(lengths):
        decoder.forward([Segment(slot, 0, 0, Rows.of(rows[slot, :length]))])
        less = dropped if length > dropped else 0
        decoder.cache.drop(slot, less)
        segments.append(Segment(slot, length - less, length, Rows.of(rows[slot, length : length + 1])))

    together = torch.cat(decoder.forward(segments))
    one_by_one = torch.cat([decoder.forward([segment])[0] for segment in segments])

    tolerance = {torch.float32: 2e-5, torch.bfloat16: 0.15}[dtype]
    torch.testing.assert_close(together, one_by_one, atol=tolerance, rtol=0.01)


@pytest.mark.usefixtures("way")
def test_nan_in_one_context_leaves_other_contexts_unchanged() -> None:
    torch.manual_seed(0)
    model = qwen3()
    alone = copy.deepcopy(model)
    decoder = PackedDecoder(model, 2, LENGTH)
    rows = torch.randn(2, LENGTH, HIDDEN)
    rows[1, 3] = torch.nan
    fed = [decoder.forward([Segment(0, 0, 0, Rows.of(rows[0, :20]))])[0]]
    decoder.forward([Segment(1, 0, 0, Rows.of(rows[1, :20]))])
    sound, spoiled = decoder.forward([Segment(slot, 20, 20, Rows.of(rows[slot, 20:40])) for slot in range(2)])
    assert spoiled.isnan().all()
    whole = alone(inputs_embeds=rows[:1, :40], use_cache=False).last_hidden_state[0]
    torch.testing.assert_close(torch.cat([*fed, sound]), whole, atol=2e-5, rtol=1e-5)
