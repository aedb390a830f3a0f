"""Every checked-in input, and a few thousand damaged ones. `make fuzz` runs longer, guided by coverage."""

import itertools
import random
import zlib

import pytest

from tests.fuzz.mutation import mutants
from tests.fuzz.seeds import FOLDER, load
from tests.fuzz.targets import TARGETS

MUTANTS = 800


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_checked_in_and_damaged_input_is_read_or_refused(target: str) -> None:
    inputs = list(load(target).values())
    damaged = mutants(inputs, random.Random(zlib.crc32(target.encode())))
    for data in (*inputs, *itertools.islice(damaged, MUTANTS)):
        try:
            TARGETS[target](data)
        except Exception as error:
            pytest.fail(f"{target} broke on {data[:2000]!r}: {error!r}")


def test_every_target_has_checked_in_inputs() -> None:
    assert {folder.name for folder in FOLDER.iterdir()} == TARGETS.keys()
    assert min(len(load(target)) for target in TARGETS) >= 2


def test_mutants_contain_bytes_absent_from_seed() -> None:
    damaged = mutants([b"abc"], random.Random(0))
    assert any(b'"' in data for data in itertools.islice(damaged, 1000))
