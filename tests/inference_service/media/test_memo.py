"""Keep results that cost much."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from inference_service.media.memo import Memo, digest
from tests.support.patience import PATIENCE_S


def test_a_result_is_made_once() -> None:
    memo, made = Memo[int](2), []

    def make() -> int:
        made.append(1)
        return len(made)

    assert [memo.get(b"a", make) for _ in range(3)] == [1, 1, 1]


def test_the_oldest_unused_result_goes() -> None:
    memo, made = Memo[str](2), []

    def making(name: str) -> Callable[[], str]:
        def make() -> str:
            made.append(name)
            return name

        return make

    for name in "abacab":
        assert memo.get(name.encode(), making(name)) == name
    assert made == ["a", "b", "c", "b"]
    assert len(memo) == 2


def test_concurrent_requests_share_one_computation() -> None:
    memo, begun, go_on, made = Memo[int](2), threading.Event(), threading.Event(), []

    def make() -> int:
        begun.set()
        assert go_on.wait(timeout=PATIENCE_S)
        made.append(1)
        return 7

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(memo.get, b"a", make)
        assert begun.wait(timeout=PATIENCE_S)
        rest = [pool.submit(memo.get, b"a", make) for _ in range(3)]
        go_on.set()
        assert [it.result(timeout=PATIENCE_S) for it in (first, *rest)] == [7] * 4
    assert made == [1]


def test_failure_is_raised_and_not_cached() -> None:
    memo = Memo[int](2)

    def fail() -> int:
        raise ValueError("no voice")

    with pytest.raises(ValueError, match="no voice"):
        memo.get(b"a", fail)
    assert memo.get(b"a", lambda: 3) == 3


def test_a_hash_covers_every_part_and_where_it_ends() -> None:
    pcm = np.zeros(16_000, np.float32)
    changed = pcm.copy()
    changed[-1] = 1e-7
    given = [
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        ("abc", True),
        ("abc", False),
        (pcm,),
        (changed,),
        (pcm[:-1],),
    ]

    assert len({digest(*parts) for parts in given}) == len(given)
    assert digest(pcm.copy()) == digest(pcm)
    assert len(digest("\ud800")) == 32
