"""How a duplex session decides its next token."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from inference_service.engine.batch.draw import UNIFORMS, TextSampler
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.sampler import choose_by_rows, choose_together
from inference_service.interface.setups import DuplexSettings
from tests.inference_service.engine.support import golden
from tests.inference_service.engine.support.decisions import adjusted, decide

SPECIAL = golden.tokenizer().special
VOCABULARY = 768
FORBIDDEN = 7
PLAIN = DuplexSettings(text_repetition_penalty=1.0, length_penalty=1.0)
GREEDY = DuplexSettings(greedy=True, text_repetition_penalty=1.0, length_penalty=1.0)


def sampler(seed: int = 0, history: list[int] | None = None) -> TextSampler:
    forbidden = torch.tensor([FORBIDDEN, SPECIAL.chunk_eos])
    return TextSampler(SPECIAL, forbidden, Noise(seed), np.array(history or [], np.int32))


def scores(**best: float) -> Tensor:
    """Zeros but for the tokens named: special ones by name, others as `t300`."""
    logits = torch.zeros(VOCABULARY)
    for name, score in best.items():
        token = getattr(SPECIAL, name, None)
        logits[int(name[1:]) if token is None else token] = score
    return logits


def random_scores(seed: int) -> Tensor:
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def test_a_decision_that_nothing_came_between_is_asked_for_once() -> None:
    one = sampler()
    foreseen = one.draw(PLAIN)
    assert one.draw(PLAIN) is foreseen
    others = [one.draw(PLAIN, Noise(9)), one.draw(replace(PLAIN, top_k=3))]
    assert not any(foreseen.is_like(other) for other in others)
    one.decided(300, PLAIN)
    after = one.draw(PLAIN)
    assert (after.uniforms, list(after.recent)) == (Noise(0, drawn=UNIFORMS).ahead(UNIFORMS), [300])
    one.history = np.array([7], np.int32)
    assert list(one.draw(PLAIN).recent) == [7]


@pytest.mark.parametrize("scale", [0.4, 1.0, 3.0])
def test_both_ways_of_drawing_repeat_what_the_reference_got_wrong(scale: float) -> None:
    settings = DuplexSettings(listen_prob_scale=scale, listen_top_k=2, temperature=1.0)
    draws = []
    for seed in range(60):
        one = sampler(seed, history=[300, 301, 305])
        one.reference_quirks = True
        draws.append(one.draw(settings))
    rows = torch.stack([random_scores(seed) for seed in range(60)])
    assert choose_by_rows(rows.clone(), draws) == choose_together(rows, draws)


def test_chunk_eos_is_tested_before_any_rule_and_leaves_no_trace() -> None:
    one = sampler(history=[5])
    assert decide(one, scores(chunk_eos=2.0, t300=1.0), GREEDY) == SPECIAL.chunk_eos
    assert one.history.tolist() == [5]


def test_chunk_eos_that_did_not_win_is_not_drawn_after_the_rules() -> None:
    settings = replace(PLAIN, temperature=1.0, top_k=2, top_p=1.0)
    logits = scores(chunk_eos=8.0, t300=9.0)
    one = sampler()
    ends = [decide(one, logits, settings) for _ in range(200)]
    # Tested once, at its own probability of 0.27; drawn among the best two, it would come far more often.
    assert 0.15 < ends.count(SPECIAL.chunk_eos) / 200 < 0.4
    assert float(adjusted(logits, one.draw(settings))[SPECIAL.chunk_eos]) == -torch.inf


def test_forbidden_tokens_are_never_decided_nor_count_in_the_rank_of_listening() -> None:
    one = sampler()
    assert decide(one, scores(**{f"t{FORBIDDEN}": 9.0}, t300=1.0), GREEDY) == 300
    assert FORBIDDEN not in {decide(one, scores(**{f"t{FORBIDDEN}": 9.0}), PLAIN) for _ in range(50)}
    logits = scores(chunk_eos=3.0, t7=3.0, t300=5.0, listen=1.0)
    assert decide(sampler(), logits, replace(GREEDY, listen_top_k=2)) == SPECIAL.listen


@pytest.mark.parametrize(
    ("window", "decided", "history"), [(2, [300, 301, 302, 300], [302, 300]), (0, [300] * 4, [])]
)
def test_repetition_looks_back_as_far_as_its_window(
    window: int, decided: list[int], history: list[int]
) -> None:
    settings = replace(GREEDY, text_repetition_penalty=1.2, text_repetition_window_size=window)
    one = sampler()
    assert [decide(one, scores(t300=1.1, t301=1.0, t302=0.95), settings) for _ in range(4)] == decided
    assert one.history.tolist() == history


def test_length_penalty_makes_the_end_of_a_turn_less_likely() -> None:
    logits = scores(turn_eos=1.05, t300=1.0)
    assert decide(sampler(), logits, GREEDY) == SPECIAL.turn_eos
    assert decide(sampler(), logits, replace(GREEDY, length_penalty=1.1)) == 300


@pytest.mark.parametrize("score", [3.0, -3.0])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_listen_scale_multiplies_the_odds_of_listening_alone(score: float, scale: float) -> None:
    logits = random_scores(1)
    logits[SPECIAL.listen] = score
    before, after = (
        adjusted(logits, sampler().draw(replace(PLAIN, listen_prob_scale=s))).softmax(0) for s in (1.0, scale)
    )
    odds = after / before
    assert float(odds[SPECIAL.listen] / odds[300]) == pytest.approx(scale, rel=1e-4)
    assert float(odds[SPECIAL.im_end] / odds[300]) == pytest.approx(1, rel=1e-4)


def test_listen_scale_of_nothing_never_listens() -> None:
    settings = replace(GREEDY, listen_prob_scale=0.0, listen_top_k=5)
    assert decide(sampler(), scores(listen=9.0, t300=1.0), settings) == 300


@pytest.mark.parametrize(("rank", "listens"), [(0, True), (2, True), (3, False)])
@pytest.mark.parametrize("greedy", [True, False])
def test_listening_is_sure_among_the_best_k(rank: int, listens: bool, greedy: bool) -> None:
    logits = torch.full((VOCABULARY,), -20.0)
    logits[300:310] = torch.arange(10.0, 0.0, -1.0)
    logits[SPECIAL.listen] = 10.5 - rank
    settings = replace(PLAIN, greedy=greedy, listen_top_k=3, temperature=2.0, top_k=8, top_p=0.3)
    decided = {decide(sampler(seed), logits, settings) for seed in range(20)}
    assert (decided == {SPECIAL.listen}) is listens


def test_noise_of_one_unit_leaves_the_sessions_alone() -> None:
    settings = replace(PLAIN, temperature=1.0, top_k=100, top_p=1.0)
    disturbed, plain = sampler(3), sampler(3)
    decide(disturbed, random_scores(0), settings, Noise(9))
    assert decide(disturbed, random_scores(1), settings) == decide(plain, random_scores(1), settings)


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-6])
def test_coldest_temperatures_take_the_best(temperature: float) -> None:
    settings = replace(PLAIN, temperature=temperature)
    assert decide(sampler(), random_scores(2), settings) == decide(sampler(), random_scores(2), GREEDY)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("settings", [GREEDY, PLAIN])
@pytest.mark.parametrize("where", ["t300", f"t{FORBIDDEN}", "chunk_eos", "listen"])
def test_score_that_is_no_number_poisons_the_decision(
    bad: float, settings: DuplexSettings, where: str
) -> None:
    one = sampler(history=[5])
    assert decide(one, scores(**{where: bad}), settings) is None
    assert (one.history.tolist(), one.noise.drawn) == ([5], 0)


def test_every_decision_draws_same_number_of_random_numbers() -> None:
    one = sampler()
    for number, given in enumerate([GREEDY, PLAIN, replace(PLAIN, temperature=2.0), GREEDY], 1):
        decide(one, scores(chunk_eos=3.0), given)
        assert one.noise.drawn == number * UNIFORMS
