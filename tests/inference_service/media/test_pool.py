"""The media pool: who waits for whom, and that everybody's work keeps its order."""

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from inference_service.media import pool as media
from inference_service.media.pool import Lane, MediaPool, Priority
from tests.support.patience import PATIENCE_S


@pytest.fixture
def pool() -> Iterator[MediaPool]:
    made = MediaPool(threads=4)
    yield made
    made.stop()


class Work:
    """Jobs that say when they are done."""

    def __init__(self) -> None:
        self.done: queue.Queue[object] = queue.Queue()

    def job(self, name: object) -> Callable[[], None]:
        return lambda: self.done.put(name)

    def next(self) -> object:
        return self.done.get(timeout=PATIENCE_S)


def hold(work: Work, lane: Lane, kind: Priority, name: object, *, begins: bool = True) -> threading.Event:
    """Submits a job, waits until it has begun if it `begins`, and returns what lets it go on."""
    begun, go_on = threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        assert go_on.wait(timeout=PATIENCE_S)
        work.done.put(name)

    lane.submit(kind, job)
    assert not begins or begun.wait(timeout=PATIENCE_S)
    return go_on


def lane(pool: MediaPool) -> Lane:
    return pool.lane(lambda: None)


def occupy(pool: MediaPool, work: Work, kind: Priority, count: int) -> list[threading.Event]:
    """Jobs of a kind that are at it until they are let go."""
    return [hold(work, lane(pool), kind, (kind, number), begins=number == 0) for number in range(count)]


def test_sound_waits_for_no_pictures_and_pictures_for_no_prompts(pool: MediaPool) -> None:
    work = Work()
    prompts = occupy(pool, work, Priority.REST, 5)
    lane(pool).submit(Priority.PICTURES, work.job("picture"))
    assert work.next() == "picture"
    pictures = occupy(pool, work, Priority.PICTURES, 5)
    lane(pool).submit(Priority.SOUND, work.job("sound"))
    assert work.next() == "sound"
    for go_on in (*prompts, *pictures):
        go_on.set()
    assert len({work.next() for _ in range(10)}) == 10


@pytest.mark.parametrize(
    ("kind", "woken"),
    [
        (Priority.SOUND, [Priority.SOUND]),
        (Priority.PICTURES, [Priority.PICTURES, Priority.REST]),
        (Priority.STEPS, [Priority.STEPS]),
    ],
)
def test_submitted_job_wakes_only_threads_of_its_priority(
    pool: MediaPool, monkeypatch: pytest.MonkeyPatch, kind: Priority, woken: list[Priority]
) -> None:
    told: list[Priority] = []
    for mine, came in zip(Priority, pool._came, strict=True):
        monkeypatch.setattr(came, "notify", lambda count=1, mine=mine: told.append(mine))
    lane(pool).submit(kind, lambda: None)
    assert told == woken


def test_prompts_do_not_starve_behind_pictures(pool: MediaPool) -> None:
    """A flood of pictures has every other thread; the rest are for what else there is."""
    work = Work()
    go_on = hold(work, lane(pool), Priority.REST, "first")
    pictures = occupy(pool, work, Priority.PICTURES, 5)
    lane(pool).submit(Priority.REST, work.job("prompt"))
    go_on.set()
    assert [work.next(), work.next()] == ["first", "prompt"]
    for release in pictures:
        release.set()
    assert len({work.next() for _ in range(5)}) == 5


def test_lane_with_mixed_priorities_keeps_its_order(pool: MediaPool) -> None:
    work, mine = Work(), lane(pool)
    go_on = hold(work, mine, Priority.REST, 0)
    mine.follow(work.job(1))
    mine.submit(Priority.SOUND, work.job(2))
    mine.submit(Priority.PICTURES, work.job(3))
    mine.follow(work.job(4))
    go_on.set()
    assert [work.next() for _ in range(5)] == [0, 1, 2, 3, 4]


def test_follow_on_empty_lane_runs_at_once(pool: MediaPool) -> None:
    done = []
    lane(pool).follow(lambda: done.append(1))
    assert done == [1]


def test_lanes_take_turns(pool: MediaPool) -> None:
    """One session's hundred prompts are not all done before another's first."""
    work, flooder, other = Work(), lane(pool), lane(pool)
    go_on = hold(work, flooder, Priority.REST, "first")
    for number in range(100):
        flooder.submit(Priority.REST, work.job(number))
    other.submit(Priority.REST, work.job("other"))
    go_on.set()
    assert "other" in [work.next() for _ in range(3)]


def test_a_lane_that_is_closed_holds_nothing(pool: MediaPool) -> None:
    work, mine = Work(), lane(pool)
    go_on = hold(work, mine, Priority.REST, "begun")
    mine.submit(Priority.REST, work.job("dropped"))
    mine.follow(work.job("dropped too"))
    mine.close()
    go_on.set()
    other = lane(pool)
    other.submit(Priority.REST, work.job("other"))
    assert [work.next(), work.next()] == ["begun", "other"]
    assert work.done.empty()


def test_failed_job_keeps_its_thread_alive(pool: MediaPool) -> None:
    work, mine = Work(), lane(pool)

    def fail() -> None:
        raise RuntimeError("no picture")

    for kind in Priority:
        for _ in range(3):
            mine.submit(kind, fail)
    mine.submit(Priority.REST, work.job("after"))
    assert work.next() == "after"


def test_waiting_lane_receives_progress(pool: MediaPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "PROGRESS_S", 0.0)
    work, told = Work(), queue.Queue[str]()
    go_on = hold(work, lane(pool), Priority.REST, "prompt")
    pool.lane(lambda: told.put("waiting")).submit(Priority.REST, work.job("waited"))
    lane(pool).submit(Priority.SOUND, work.job("sound"))
    assert told.get(timeout=PATIENCE_S) == "waiting"
    go_on.set()
    assert {work.next() for _ in range(3)} == {"sound", "prompt", "waited"}


def test_stop_waits_for_running_job_and_nothing_is_begun_afterwards() -> None:
    pool, work = MediaPool(threads=4), Work()
    go_on = hold(work, lane(pool), Priority.REST, "prompt")
    end = threading.Thread(target=pool.stop)
    end.start()
    end.join(timeout=0.1)
    assert end.is_alive()
    go_on.set()
    end.join(timeout=PATIENCE_S)
    assert work.next() == "prompt"
    assert not any(thread.is_alive() for thread in pool._threads)
    lane(pool).submit(Priority.SOUND, work.job("late"))
    assert work.done.empty()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority of their own")
def test_pictures_and_prompts_give_way_to_ticks_and_sound_and_words_do_not(pool: MediaPool) -> None:
    work = Work()

    def priority() -> None:
        work.done.put(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    usual = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    lowered = os.getpriority(os.PRIO_PROCESS, 0) + media.GIVES_WAY
    seen = {}
    for kind in Priority:
        lane(pool).submit(kind, priority)
        seen[kind] = work.next()

    assert seen == {
        Priority.SOUND: usual,
        Priority.PICTURES: min(19, lowered),
        Priority.REST: min(19, lowered),
        Priority.STEPS: min(19, lowered),
        Priority.WORDS: usual,
        Priority.VIDEOS: min(19, lowered),
    }


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority of their own")
def test_jobs_are_done_where_a_system_call_filter_forbids_priorities(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With SystemCallFilter=~@resources the threads died at their start and pictures waited for ever."""

    def forbidden(which: int, who: int, priority: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", forbidden)
    pool, work = MediaPool(), Work()
    try:
        lane(pool).submit(Priority.PICTURES, lambda: work.done.put("picture"))
        assert work.next() == "picture"
    finally:
        pool.stop()
    assert "priority unchanged" in caplog.text


def test_videos_wait_for_each_other_and_nothing_else_waits_for_them(pool: MediaPool) -> None:
    work = Work()
    videos = occupy(pool, work, Priority.VIDEOS, 3)
    for kind in (Priority.SOUND, Priority.PICTURES, Priority.REST, Priority.STEPS):
        lane(pool).submit(kind, work.job(kind))
        assert work.next() is kind
    for go_on in videos:
        go_on.set()
    assert [work.next() for _ in videos] == [(Priority.VIDEOS, number) for number in range(3)]


def test_long_job_reports_progress_to_waiting_lanes(pool: MediaPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "PROGRESS_S", 0.0)
    work, told = Work(), queue.Queue[str]()
    mine = pool.lane(lambda: told.put("mine"))
    go_on = hold(work, mine, Priority.VIDEOS, "video")
    pool.lane(lambda: told.put("waiting")).submit(Priority.VIDEOS, work.job("waited"))
    mine.check()
    assert {told.get(timeout=PATIENCE_S) for _ in range(2)} == {"mine", "waiting"}
    go_on.set()


@pytest.mark.parametrize("end", ["lane", "pool"])
def test_long_job_is_abandoned_when_its_lane_or_pool_closes(
    end: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool, work = MediaPool(), Work()
    mine = lane(pool)

    def job() -> None:
        work.done.put("begun")
        while True:
            mine.check()

    mine.submit(Priority.VIDEOS, job)
    assert work.next() == "begun"
    if end == "lane":
        mine.close()
        lane(pool).submit(Priority.VIDEOS, work.job("next"))
        assert work.next() == "next"
    pool.stop()

    assert not any(thread.is_alive() for thread in pool._threads)
    assert "failed" not in caplog.text
