"""Fixtures: one torch thread, packed linear layers of any size, conversations that end with the test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.inference_service.engine.support.talker import Talker
from tests.inference_service.support.one_thread import one_thread
from tests.inference_service.support.packed import packed

__all__ = ["one_thread", "packed"]


@pytest.fixture
def talker() -> Iterator[Callable[..., Any]]:
    """Open conversations of a kind, each in the next slot."""
    made: list[Talker] = []

    def make(kind: type[Talker] = Talker, **how: Any) -> Talker:
        made.append(kind(len(made), **how))
        return made[-1]

    yield make
    for one in made:
        one.leave()
