"""What `make test` leaves to `make long`: further seeds of what one seed shows, and what takes very long."""

from collections.abc import Sequence
from typing import Any

import pytest

long = pytest.mark.long


def seeds(first: int, *more: int) -> Sequence[Any]:
    """Of a `parametrize`: the first one is for `make test`."""
    return [first, *(pytest.param(seed, marks=long) for seed in more)]
