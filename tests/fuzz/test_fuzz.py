"""Every checked-in input, and a few thousand damaged ones. `make fuzz` runs longer, guided by coverage."""

import itertools
import random
import zlib

import pytest

from tests.fuzz.mutation import mutants
from tests.fuzz.seeds import first_inputs, load
from tests.fuzz.targets import TARGETS

MUTANTS = 800


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_checked_in_input_is_read_or_refused(target: str) -> None:
    for data in load(target).values():
        TARGETS[target](data)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_damaged_input_is_read_or_refused(target: str) -> None:
    inputs = list(load(target).values())
    damaged = mutants(inputs, random.Random(zlib.crc32(target.encode())))

    for data in itertools.islice(damaged, MUTANTS):
        try:
            TARGETS[target](data)
        except Exception as error:
            pytest.fail(f"{target} broke on {data[:2000]!r}: {error!r}")


def test_valid_inputs_are_checked_in() -> None:
    """What the corpus was made from is still in it, under the same names."""
    for target, inputs in first_inputs().items():
        assert inputs.keys() <= load(target).keys()
    assert first_inputs().keys() == TARGETS.keys()


def test_damage_goes_beyond_what_was_there() -> None:
    damaged = mutants([b"abc"], random.Random(0))

    assert any(b'"' in data for data in itertools.islice(damaged, 1000))
