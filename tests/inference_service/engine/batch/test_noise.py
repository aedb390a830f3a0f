"""The random numbers of a session."""

from collections import Counter

import numpy as np
import pytest

from inference_service.engine.batch.noise import SPEECH, Noise


def test_a_number_depends_on_its_seed_and_place_alone() -> None:
    whole = Noise(5).ahead(40)
    stepwise, noise = [], Noise(5)
    while noise.drawn < 40:
        count = 1 + noise.drawn % 3
        stepwise += noise.ahead(count)[:count]
        noise.use(count)
    assert stepwise[:40] == whole
    assert [Noise(5, drawn=place).ahead(1)[0] for place in range(40)] == whole


def test_looking_ahead_uses_nothing_up() -> None:
    noise = Noise(5)
    assert noise.ahead(3) == noise.ahead(3)
    assert noise.drawn == 0


def test_seeds_and_streams_have_nothing_in_common() -> None:
    numbers = [noise.ahead(100) for noise in (Noise(0), Noise(0, SPEECH), Noise(1), Noise(2**63 - 1))]
    assert len({number for ahead in numbers for number in ahead}) == 400


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_numbers_are_spread_evenly(seed: int) -> None:
    numbers = Noise(seed).ahead(20_000)
    assert all(0 <= number < 1 and float(np.float32(number)) == number for number in numbers)
    counts = Counter(int(number * 100) for number in numbers)
    assert sum((counts[cell] - 200) ** 2 / 200 for cell in range(100)) < 160  # 1 in 10,000 is above


def test_neither_neighbouring_numbers_nor_neighbouring_seeds_nor_streams_go_together() -> None:
    def pairs(one: list[float], other: list[float]) -> float:
        return abs(float(np.corrcoef(one, other)[0, 1]))

    count = 20_000
    numbers = Noise(3).ahead(count)
    assert pairs(numbers[:-1], numbers[1:]) < 0.03
    assert pairs(numbers, Noise(4).ahead(count)) < 0.03
    assert pairs(numbers, Noise(3, SPEECH).ahead(count)) < 0.03
    assert pairs([Noise(s).ahead(1)[0] for s in range(count)], [*range(count)]) < 0.03
