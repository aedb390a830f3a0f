"""One token by a session's sampling."""

import pytest
import torch

from inference_service.api.setups import Sampling
from inference_service.engine.batch.sampler import PoisonedLogits, sample

GREEDY = Sampling(temperature=0.0)
SCORES = torch.tensor([1.0, 3.0, 2.5, -1.0])


def pick(sampling: Sampling, *, said: tuple[int, ...] = (), ends: tuple[int, ...] = (), seed: int = 0) -> int:
    return sample(SCORES, sampling, said, ends, torch.Generator().manual_seed(seed))


def drawn(sampling: Sampling) -> set[int]:
    return {pick(sampling, seed=seed) for seed in range(200)}


def test_without_temperature_the_likeliest_is_taken() -> None:
    assert pick(GREEDY) == 1


def test_repetition_counts_what_was_said() -> None:
    assert pick(Sampling(temperature=0.0, repetition_penalty=1.5), said=(1,)) == 2


def test_length_penalty_makes_the_end_less_likely() -> None:
    assert pick(Sampling(temperature=0.0, length_penalty=1.5), ends=(1,)) == 2
    assert pick(Sampling(temperature=0.0, length_penalty=0.5), ends=(2,)) == 2


def test_all_may_be_drawn_or_few_of_them() -> None:
    hot = Sampling(temperature=2.0, top_p=1.0)
    assert drawn(hot) == {0, 1, 2, 3}
    assert drawn(Sampling(temperature=2.0, top_p=1.0, top_k=2)) == {1, 2}
    assert drawn(Sampling(temperature=2.0, top_p=0.1)) == {1}


def test_draws_repeat_with_the_seed() -> None:
    hot = Sampling(temperature=2.0, top_p=1.0)

    assert [pick(hot, seed=s) for s in range(20)] == [pick(hot, seed=s) for s in range(20)]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_scores_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(PoisonedLogits):
        sample(torch.tensor([1.0, bad]), GREEDY, (), (), torch.Generator())


def test_forbidden_ids_are_never_chosen() -> None:
    scores = SCORES.index_fill(0, torch.tensor([1]), -torch.inf)

    assert sample(scores, GREEDY, (), (), torch.Generator()) == 2


def test_where_nothing_is_allowed_the_unit_fails() -> None:
    with pytest.raises(PoisonedLogits):
        sample(torch.full((4,), -torch.inf), GREEDY, (), (), torch.Generator())
