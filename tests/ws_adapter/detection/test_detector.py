"""One detector for many sessions: each gets its own scores, in order, whatever the others do."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.patience import PATIENCE_S
from tests.ws_adapter.support.stage import until
from ws_adapter.detection.detector import (
    GATHER_S,
    MOST_AT_ONCE,
    MOST_OF_ONE,
    MOST_WAITING,
    Detector,
    Listener,
)
from ws_adapter.protocol.core.speech import WINDOW

Sound = NDArray[np.float32]


class First:
    """Scores a window by its first sample; `seen` has the sizes of all batches. Fails on what is negative."""

    name = "first"

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.gate: Callable[[], Any] = lambda: None

    def begin(self) -> list[float]:
        return []

    def score(self, memories: Sequence[list[float]], windows: Sequence[Sound]) -> list[Sound]:
        self.gate()
        self.seen.append([len(given) for given in windows])
        for memory, given in zip(memories, windows, strict=True):
            if (given < 0).any():
                raise ValueError("not this")
            memory += given[:, 0].tolist()
        return [given[:, 0].copy() for given in windows]


class Heard:
    """A listener that records the scores and failures of one session."""

    def __init__(self, detector: Detector) -> None:
        self.scores: list[float] = []
        self.failures = 0
        self.listener: Listener = detector.listen(self._tell, self._failed)

    def _tell(self, scores: Sequence[float]) -> None:
        self.scores += scores

    def _failed(self) -> None:
        self.failures += 1


def numbered(count: int, first: int = 1) -> Sound:
    """So many windows, each of its number in thousandths."""
    return np.repeat(np.arange(first, first + count, dtype=np.float32) / 1000, WINDOW)


def numbers(scores: Sequence[float]) -> list[int]:
    return [round(score * 1000) for score in scores]


@pytest.fixture
def scorer() -> First:
    return First()


@pytest.fixture
async def detector(scorer: First) -> AsyncIterator[Detector]:
    detector = Detector(scorer)
    yield detector
    detector.close()


@pytest.mark.parametrize("piece", [1, 7, 160, 512, 1600, 100_000])
async def test_each_whole_window_is_scored_once_in_order(detector: Detector, piece: int) -> None:
    sound, heard = numbered(20)[:-1], Heard(detector)
    for at in range(0, sound.size, piece):
        heard.listener.give(sound[at : at + piece])
    await until(lambda: len(heard.scores) == 19)
    heard.listener.give(sound[:1])
    await until(lambda: len(heard.scores) == 20)
    assert numbers(heard.scores) == list(range(1, 21))
    assert heard.listener.held_bytes == 0


async def test_sessions_are_scored_together(detector: Detector, scorer: First) -> None:
    sessions = [Heard(detector) for _ in range(20)]
    for number, session in enumerate(sessions):
        session.listener.give(numbered(3, 10 * number))
    await until(lambda: all(len(session.scores) == 3 for session in sessions))
    assert scorer.seen == [[3] * 20]
    assert [numbers(session.scores)[0] for session in sessions] == [10 * number for number in range(20)]


async def test_listener_with_large_backlog_delays_no_other_listener(
    detector: Detector, scorer: First
) -> None:
    """The attack: a minute at once, before everybody else."""
    attacker, other = Heard(detector), Heard(detector)
    attacker.listener.give(numbered(1900))
    other.listener.give(numbered(2))
    await until(lambda: len(attacker.scores) == 1900)
    assert numbers(other.scores) == [1, 2]
    assert scorer.seen[0] == [MOST_OF_ONE, 2]
    assert numbers(attacker.scores) == list(range(1, 1901))
    assert max(map(sum, scorer.seen)) < MOST_AT_ONCE + MOST_OF_ONE


async def test_a_fault_stays_with_the_session_that_has_it(detector: Detector) -> None:
    """The attacks: what cannot be scored, in one batch with the others; and scores that cannot be told."""
    failures = []

    def refuses(scores: Sequence[float]) -> None:
        raise ValueError("not now")

    refusing = detector.listen(refuses, lambda: failures.append(1))
    attacker, others = Heard(detector), [Heard(detector) for _ in range(3)]
    refusing.give(numbered(2))
    attacker.listener.give(-numbered(2))
    for other in others:
        other.listener.give(numbered(2))

    await until(lambda: attacker.failures == 1 and failures)

    assert failures == [1]
    assert [numbers(other.scores) for other in others] == [[1, 2]] * 3
    assert attacker.scores == []
    assert [other.failures for other in others] == [0] * 3


async def test_lagging_listener_drops_oldest_windows_and_keeps_score_count(
    detector: Detector, scorer: First
) -> None:
    heard = Heard(detector)
    heard.listener.give(numbered(1))
    await until(lambda: len(heard.scores) == 1)
    for _ in range(10):
        heard.listener.give(numbered(MOST_WAITING // 2, 1000))
        assert heard.listener.waiting <= MOST_WAITING
    given = 1 + 10 * (MOST_WAITING // 2)
    await until(lambda: len(heard.scores) == given)
    passed = given - 1 - MOST_WAITING
    assert numbers(heard.scores[: 1 + passed]) == [1] * (1 + passed)
    assert sum(map(sum, scorer.seen)) == 1 + MOST_WAITING


async def test_dropped_windows_are_scored_after_older_sound(detector: Detector, scorer: First) -> None:
    open_gate, is_scoring = threading.Event(), threading.Event()
    scorer.gate = lambda: (is_scoring.set(), open_gate.wait(PATIENCE_S))
    heard = Heard(detector)
    heard.listener.give(numbered(2))
    await asyncio.to_thread(is_scoring.wait, PATIENCE_S)
    heard.listener.give(numbered(5, 100))
    heard.listener.give(numbered(MOST_WAITING, 1000))
    open_gate.set()
    await until(lambda: len(heard.scores) == 7 + MOST_WAITING)
    assert numbers(heard.scores[:8]) == [1, 2, *[2] * 5, 1000]


async def test_closed_listener_gets_no_scores_even_during_scoring(detector: Detector) -> None:
    closed, scored, other = Heard(detector), Heard(detector), Heard(detector)
    first = detector.listen(lambda scores: scored.listener.close(), lambda: None)
    for listener in (closed.listener, first, scored.listener, other.listener):
        listener.give(numbered(2))
    closed.listener.close()
    closed.listener.give(numbered(2))
    await until(lambda: len(other.scores) == 2)
    assert closed.scores == scored.scores == []
    assert closed.listener.held_bytes == 0


async def test_a_detector_that_is_closed_leaves_nothing_behind(scorer: First) -> None:
    detector = Detector(scorer)
    heard = Heard(detector)
    heard.listener.give(numbered(2))
    detector.close()
    heard.listener.give(numbered(2))
    loop, is_later, wrong = asyncio.get_running_loop(), asyncio.Event(), []
    loop.set_exception_handler(lambda _, context: wrong.append(context))
    loop.call_later(GATHER_S, is_later.set)  # after what was to begin
    await is_later.wait()
    assert (heard.scores, scorer.seen, wrong) == ([], [], [])
