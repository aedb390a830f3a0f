"""The draws of many sessions in one pass: what each would draw by itself, rule by rule."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference_service.engine.batch.draw import COLDEST, Draw, drawn_by
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.sampler import (
    LARGE,
    WIDTHS,
    choose_by_rows,
    choose_in_numpy,
    choose_together,
    goes_by_rows,
    penalise,
    ranked,
)
from inference_service.interface.setups import KEEP_ALL, Sampling
from tests.inference_service.engine.support.decisions import Way, chosen
from tests.support.long import examples

WAYS = (choose_by_rows, choose_in_numpy, choose_together)
"""All give the same tokens; the first two are one where nothing is compiled."""
each_way = pytest.mark.parametrize("way", WAYS)

GREEDY = Sampling(temperature=0.0)
SCORES = torch.tensor([1.0, 3.0, 2.5, -1.0])


def pick(
    sampling: Sampling, *, said: tuple[int, ...] = (), ends: tuple[int, ...] = (), seed: int = 0
) -> int | None:
    return chosen(SCORES, drawn_by(sampling, Noise(seed), said, ends))


def drawn(sampling: Sampling) -> set[int | None]:
    return {pick(sampling, seed=seed) for seed in range(200)}


@pytest.mark.parametrize(
    ("rules", "asked", "token"),
    [
        ({}, {}, 1),
        ({"repetition_penalty": 1.5}, {"said": (1,)}, 2),
        ({"length_penalty": 1.5}, {"ends": (1,)}, 2),
        ({"length_penalty": 0.5}, {"ends": (2,)}, 2),
    ],
    ids=["likeliest", "said before", "less likely end", "likelier end"],
)
def test_without_temperature_the_likeliest_is_taken_after_penalties(
    rules: dict[str, float], asked: dict[str, tuple[int, ...]], token: int
) -> None:
    assert pick(replace(GREEDY, **rules), **asked) == token


@each_way
@pytest.mark.parametrize("name", ["repetition_penalty", "length_penalty"])
def test_penalty_lowers_a_negative_score(name: str, way: Way) -> None:
    scores, said, ends = torch.tensor([-1.0, -1.2]), (0,), (0,)
    draw = drawn_by(replace(GREEDY, **{name: 1.5}), Noise(0), said, ends)
    assert chosen(scores, draw, way) == 1


@each_way
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_greedy_draws_in_plain_and_general_batches_agree(bad: float, way: Way) -> None:
    scores, plain = torch.randn(3, 300), drawn_by(GREEDY, Noise(1))
    scores[1] = bad
    scores[2, [7, 9]] = 50.0
    assert plain.is_plain
    more = replace(plain, bias=1e-9)
    assert not more.is_plain
    assert way(scores.clone(), [plain] * 3) == way(scores.clone(), [more] * 3)
    assert way(scores.clone(), [plain] * 3) == [int(scores[0].argmax()), None, 7]


@pytest.mark.parametrize("width", [64, 500])
def test_ranked_scores_put_nan_first_and_then_likeliest(width: int) -> None:
    scores = torch.randn(4, 500, generator=torch.Generator().manual_seed(1))
    scores[1, 70], scores[2, 30], scores[3, :440] = torch.nan, torch.inf, -torch.inf
    expected = scores.topk(width, dim=1)
    found = ranked(scores, width)
    np.testing.assert_array_equal(found.scores, expected.values.numpy())
    is_one = np.isfinite(found.scores)
    np.testing.assert_array_equal(found.ids[is_one], expected.indices.numpy()[is_one])
    assert found.ids[1, 0] == 70
    assert [len(set(ids)) for ids in found.ids.tolist()] == [width] * 4


def test_repetition_lowers_positive_and_negative_scores_once() -> None:
    scores = torch.tensor([[2.0, -2.0, 0.0, 1.0]])
    penalise(scores, torch.tensor([[0, 1, 2, 0]]), torch.tensor([[2.0]]))
    assert scores.tolist() == [[1.0, -4.0, 0.0, 1.0]]


def test_all_may_be_drawn_or_few_of_them() -> None:
    hot = Sampling(temperature=2.0, top_p=1.0)
    assert drawn(hot) == {0, 1, 2, 3}
    assert drawn(replace(hot, top_k=2)) == {1, 2}
    assert drawn(replace(hot, top_p=0.1)) == {1}


@each_way
def test_draw_without_allowed_tokens_returns_none(way: Way) -> None:
    assert chosen(torch.full((4,), -torch.inf), drawn_by(GREEDY, Noise(0)), way) is None
    everything = drawn_by(Sampling(), Noise(0), forbidden=torch.arange(4))
    assert chosen(SCORES, everything, way) is None


@each_way
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=2.0, top_p=1.0)])
def test_only_what_a_tool_allows_is_chosen(sampling: Sampling, way: Way) -> None:
    scores, allowed = torch.randn(70), np.array([0, 1 << 31 - 1, 1 << 3], np.int64).astype(np.int32)
    draws = [drawn_by(sampling, Noise(seed), allowed=allowed) for seed in range(40)]
    assert set(way(scores.repeat(40, 1), draws)) <= {62, 67}


def test_a_vocabulary_that_is_not_large_is_gone_through_row_by_row_however_many_rows_there_are() -> None:
    assert [goes_by_rows(torch.device("cpu"), size) for size in (1, LARGE, LARGE + 1)] == [True, True, False]
    assert not goes_by_rows(torch.device("meta"), 1)


class Near(Exception):
    """The number drawn lies so close to a border that rounding decides."""


def plainly(scores: list[float], draw: Draw) -> int | None:
    """One decision, rule by rule, over plain lists."""
    near = 2e-6 if len(scores) > WIDTHS[0] else 1e-12
    row = np.array(scores, np.float32)
    with np.errstate(invalid="ignore"):
        return _plainly(row, draw, near)


def _plainly(row: np.ndarray[tuple[int], np.dtype[np.float32]], draw: Draw, near: float) -> int | None:
    if draw.first is not None:
        if not np.isfinite(row.max()):
            return None
        if draw.temperature < COLDEST:
            chance = float(int(np.argmax(row)) == draw.first)
        else:
            weights = np.exp(row.astype(np.float64) - float(row.max()))
            chance = float(weights[draw.first] / weights.sum())
            if abs(chance - draw.uniforms[0]) < 2e-6:
                raise Near
        if draw.uniforms[0] < chance:
            return draw.first
    for token in [] if draw.forbidden is None else draw.forbidden.tolist():
        row[token] = -np.inf
    for ids, penalty in ((draw.recent, draw.repetition_penalty), (draw.ends, draw.length_penalty)):
        for token in set(ids):
            by = np.float32(penalty)
            row[token] = row[token] / by if row[token] > 0 else row[token] * by
    if draw.bias:
        row[draw.favoured] += np.float32(draw.bias)
    if sum(score > row[draw.favoured] for score in row) < draw.sure_within:
        row[draw.favoured] = row.max() + np.float32(50)
    if not np.isfinite(row.max()):
        return None
    best = sorted(range(len(row)), key=lambda token: (-row[token], token))
    if draw.temperature < COLDEST:
        return best[0]
    best = best[: draw.top_k]
    weights = np.exp((row[best].astype(np.float64) - float(row[best[0]])) / draw.temperature)
    whole, kept, mass = float(weights.sum()), [], 0.0
    for token, weight in zip(best, weights, strict=True):
        if kept and mass >= draw.top_p * whole:
            break
        if kept and draw.top_p < 1 and abs(mass - draw.top_p * whole) < near * whole:
            raise Near
        kept.append(token)
        mass += float(weight)
    point, mass, last = draw.uniforms[1] * mass, 0.0, best[0]
    for token, weight in zip(kept, weights, strict=False):
        mass += float(weight)
        if weight > 0:
            last = token
        if abs(mass - point) < near * whole and near > 1e-9:
            raise Near
        if mass > point:
            return token
    return last


SIZES = st.sampled_from([1, 3, 40, WIDTHS[0], WIDTHS[0] + 1, 300, WIDTHS[1] + 200])


@st.composite
def rows(draw: st.DrawFn, size: int) -> tuple[list[float], Draw]:
    """Scores of one session, often equal, flat or forbidden, and what it asks for."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["spread", "steps", "flat", "peak"]))
    scores = {
        "spread": rng.standard_normal(size) * draw(st.sampled_from([1e-3, 1.0, 10.0, 1e37])),
        "steps": rng.integers(-2, 3, size).astype(float),
        "flat": np.zeros(size),
        "peak": np.where(np.arange(size) == rng.integers(size), 9.0, rng.standard_normal(size)),
    }[kind]
    for bad in draw(st.lists(st.sampled_from([-np.inf, -np.inf, -np.inf, np.nan, np.inf]), max_size=2)):
        scores[rng.integers(size)] = bad
    ids = st.integers(0, size - 1)
    asked = Draw(
        draw(st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0])),
        draw(st.sampled_from([1, 2, 20, WIDTHS[0], 65, 250, 1030, 1200, KEEP_ALL])),
        draw(st.sampled_from([0.05, 0.5, 0.8, 0.95, 1.0])),
        [draw(st.integers(0, 2**24 - 1)) / 2**24 for _ in range(2)],
        first=draw(st.none() | ids),
        forbidden=torch.tensor(draw(st.lists(ids, max_size=3)), dtype=torch.long),
        recent=draw(st.lists(ids, max_size=6)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.05, 2.0, 0.5])),
        ends=draw(st.lists(ids, max_size=2)),
        length_penalty=draw(st.sampled_from([1.0, 1.1, 0.1])),
        favoured=draw(ids),
        bias=draw(st.sampled_from([0.0, 0.7, -np.inf])),
        sure_within=draw(st.sampled_from([0, 0, 1, 3])),
    )
    return scores.tolist(), asked


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[list[float], Draw]]:
    """A few sessions of one model."""
    size = draw(SIZES)
    return draw(st.lists(rows(size), min_size=1, max_size=5))


@settings(deadline=None, max_examples=examples(200))
@given(batches())
def test_each_row_of_batch_draws_same_token_as_alone(batch: list[tuple[list[float], Draw]]) -> None:
    draws = [draw for _, draw in batch]
    for way in WAYS:
        together = way(torch.tensor([scores for scores, _ in batch], dtype=torch.float32), draws)
        for (scores, draw), token in zip(batch, together, strict=True):
            assert way(torch.tensor([scores], dtype=torch.float32), [draw]) == [token]
            try:
                expected = plainly(scores, draw)
            except Near:
                continue
            assert token == expected


@settings(deadline=None, max_examples=300)
@given(batches(), st.sampled_from([None, 5, 2**31 - 7]))
@pytest.mark.long
def test_compiled_sampler_draws_same_tokens_as_numpy(
    batch: list[tuple[list[float], Draw]], allowed: int | None
) -> None:
    """Also where the numbers of both fall close together, and of the reference's rules."""
    size = len(batch[0][0])
    words = None if allowed is None else np.full(-(-size // 32), allowed, np.int32)
    draws = [replace(draw, allowed=words, scale=0.4, divides=allowed == 5) for _, draw in batch]
    scores = torch.tensor([scores for scores, _ in batch], dtype=torch.float32)
    assert choose_by_rows(scores.clone(), draws) == choose_in_numpy(scores.clone(), draws)


@pytest.mark.parametrize("top_k", [WIDTHS[0], WIDTHS[1], WIDTHS[1] + 1, KEEP_ALL])
@pytest.mark.parametrize("uniform", [0.0, 0.01, 0.3, 0.9, 1 - 2**-24])
@pytest.mark.parametrize("top_p", [0.5, 1.0])
@each_way
def test_of_equal_scores_the_lower_ids_come_first_however_many_there_are(
    top_k: int, uniform: float, top_p: float, way: Way
) -> None:
    size = 3000
    draw = Draw(1.0, top_k, top_p, [0.0, uniform])
    token = chosen(torch.zeros(size), draw, way)
    assert token is not None
    assert abs(token - int(uniform * top_p * min(top_k, size))) <= 1


@each_way
def test_first_tested_token_is_drawn_with_model_probability(way: Way) -> None:
    scores = torch.tensor([2.0, 1.0, 0.0])
    draws = [
        Draw(0.1, 1, 1.0, Noise(seed).ahead(2), first=1, forbidden=torch.tensor([1])) for seed in range(4000)
    ]
    found = way(scores.repeat(4000, 1), draws).count(1) / 4000
    assert abs(found - float(scores.softmax(0)[1])) < 0.03


def crowd(seed: int, count: int, size: int) -> tuple[Tensor, list[Draw]]:
    rng = np.random.default_rng(seed)
    draws = [
        Draw(
            float(rng.choice([0.0, 0.7, 1.2])),
            int(rng.choice([20, KEEP_ALL])),
            float(rng.choice([0.8, 1.0])),
            Noise(int(rng.integers(2**62))).ahead(2),
            first=rng.choice([None, 3]),
            recent=rng.integers(size, size=rng.integers(9)).tolist(),
            repetition_penalty=1.3,
            forbidden=[None, torch.tensor([1, 2])][rng.integers(2)],
        )
        for _ in range(count)
    ]
    return torch.from_numpy(rng.standard_normal((count, size)).astype(np.float32) * 3), draws


@each_way
def test_nothing_that_a_neighbour_is_or_asks_changes_a_token(way: Way) -> None:
    size, own = 500, 7
    scores, draws = crowd(1, 16, size)
    expected = way(scores.clone(), draws)[own]
    changes: list[dict[str, object]] = [
        {"uniforms": [0.999, 0.999]},
        {"recent": list(range(400)), "repetition_penalty": 9.0},
        {"temperature": 0.0},
        {"top_k": 1},
        {"first": own, "sure_within": 500},
        {"forbidden": torch.arange(size)},
    ]
    for change in changes:
        others = [draw if row == own else replace(draw, **change) for row, draw in enumerate(draws)]
        assert way(scores.clone(), others)[own] == expected
    for bad in (torch.nan, torch.inf, -torch.inf):
        spoiled = scores.clone()
        spoiled[torch.arange(16) != own] = bad
        told = way(spoiled, draws)
        assert told[own] == expected
        assert all(token is None for row, token in enumerate(told) if row != own)
