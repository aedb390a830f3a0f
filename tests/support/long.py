"""Test cases that `make test` leaves to `make long`: further seeds, and tests that take very long."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

long = pytest.mark.long


def seeds(first: int, *more: int) -> Sequence[Any]:
    return [first, *(pytest.param(seed, marks=long) for seed in more)]


def examples(count: int) -> int:
    """Return how many examples of `count` to try: under `make test` a quarter, but at least 20."""
    is_same = settings.default is not None and settings.default.derandomize
    return min(count, max(20, count // 4)) if is_same else count
