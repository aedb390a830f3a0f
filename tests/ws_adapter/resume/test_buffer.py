"""Sessions keep events that they sent, within bounds."""

import random

import pytest

from ws_adapter.resume import buffer
from ws_adapter.resume.buffer import MOST_BYTES, MOST_KEPT_BYTES, ReplayBuffer, ReplayBuffers

LARGE = b" " * 2**17
"""About a second of speech; it is counted for each session, and there once."""


def event(number: int, size: int = 10) -> tuple[bytes, ...]:
    return (b"%d" % number, b" " * (size - len(str(number))))


def filled(everything: ReplayBuffers, count: int, size: int = 10) -> ReplayBuffer:
    kept = ReplayBuffer(everything)
    kept.open()
    for number in range(1, count + 1):
        kept.add(event(number, size))
    return kept


def numbers(kept: ReplayBuffer, number: int) -> list[int] | None:
    events = kept.after(number)
    return None if events is None else [int(parts[0]) for parts in events]


def test_events_behind_a_number_come_once_and_in_order() -> None:
    kept = filled(ReplayBuffers(), 5)

    assert numbers(kept, 0) == [1, 2, 3, 4, 5]
    assert numbers(kept, 3) == [4, 5]
    assert numbers(kept, 5) == []
    for never_sent in (-1, 6, 10**12):
        assert numbers(kept, never_sent) is None


def test_long_events_come_back_whole_and_leave_their_blocks_to_others() -> None:
    everything = ReplayBuffers()
    free = everything.blocks.free
    sent = [(b"%d" % number, random.Random(number).randbytes(125_000), b"end") for number in range(3)]
    kept = filled(everything, 0)
    for parts in sent:
        kept.add(parts)
    told = kept.after(0)

    assert told is not None
    assert [b"".join(parts) for parts in told] == [b"".join(parts) for parts in sent]
    assert b"".join(kept.event(2)) == b"".join(sent[1])
    assert everything.blocks.free == free - 3
    kept.close()
    assert everything.blocks.free == free
    assert everything.kept_bytes == 0


def test_event_before_open_is_numbered_and_not_kept() -> None:
    everything = ReplayBuffers()
    kept = ReplayBuffer(everything)
    kept.add(event(1))
    kept.open()
    kept.add(event(2))

    assert kept.sent == 2
    assert numbers(kept, 0) is None
    assert numbers(kept, 1) == [2]
    assert everything.kept_bytes == 10


def test_event_over_the_most_events_or_bytes_drops_the_oldest_and_the_last_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffer, "MOST_EVENTS", 3)
    kept = filled(ReplayBuffers(), 5)
    assert numbers(kept, 1) is None
    assert numbers(kept, 2) == [3, 4, 5]

    monkeypatch.setattr(buffer, "MOST_BYTES", 25)
    everything = ReplayBuffers()
    kept = filled(everything, 5)
    assert numbers(kept, 2) is None
    assert numbers(kept, 3) == [4, 5]
    assert everything.kept_bytes == 20

    monkeypatch.setattr(buffer, "MOST_KEPT_BYTES", 25)
    everything = ReplayBuffers()
    assert numbers(filled(everything, 2, size=100), 1) == [2]
    assert everything.kept_bytes == 100


def test_event_that_was_sent_is_not_copied() -> None:
    kept = filled(ReplayBuffers(), 0)
    sent = event(1)
    kept.add(sent)

    events = kept.after(0)

    assert events is not None
    assert next(events) is sent


def test_close_gives_its_bytes_back_once_and_keeps_nothing() -> None:
    everything = ReplayBuffers()
    first, second = filled(everything, 3), filled(everything, 4)
    first.close()
    first.close()
    first.add(event(4))

    assert everything.kept_bytes == 40
    assert numbers(first, 3) is None
    second.close()
    assert everything.kept_bytes == 0
    assert everything.share == MOST_BYTES


def test_session_that_sends_nothing_any_more_is_cut_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer, "MOST_KEPT_BYTES", 100)
    everything = ReplayBuffers()
    idle = filled(everything, 10)
    busy = filled(everything, 10)

    assert everything.kept_bytes <= 100
    assert numbers(idle, 5) == [6, 7, 8, 9, 10]
    assert numbers(busy, 5) == [6, 7, 8, 9, 10]


def test_sessions_that_each_keep_the_most_stay_within_the_bound_of_all() -> None:
    everything = ReplayBuffers()
    sessions = []
    for _ in range(1000):
        kept = filled(everything, 0)
        sessions.append(kept)
        for _ in range(9):
            kept.add((LARGE,))
            assert everything.kept_bytes <= MOST_KEPT_BYTES + len(LARGE)

    assert everything.kept_bytes > MOST_KEPT_BYTES / 2
    assert sessions[-1].after(8) is not None, "the last event of the one that was sent to last is kept"
    for kept in sessions:
        kept.close()
    assert everything.kept_bytes == 0


@pytest.mark.parametrize("seed", range(5))
def test_total_bound_of_replay_buffers_holds_for_random_events(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer, "MOST_KEPT_BYTES", 2000)
    monkeypatch.setattr(buffer, "MOST_BYTES", 300)
    rng, everything = random.Random(seed), ReplayBuffers()
    kept: list[ReplayBuffer] = []
    for _ in range(3000):
        if not kept or rng.random() < 0.02:
            kept.append(filled(everything, 0))
        one = rng.choice(kept)
        one.add(event(one.sent + 1, rng.choice([5, 50, 500])))
        assert everything.kept_bytes <= 2000 + 500
        told = numbers(one, one.sent - 1)
        assert told == [one.sent]
        if rng.random() < 0.01:
            one.close()
            kept.remove(one)
    for one in kept:
        one.close()
    assert everything.kept_bytes == 0
