"""What a session keeps of the events that it sent."""

from dataclasses import dataclass

import pytest

from ws_adapter.resume import buffer
from ws_adapter.resume.buffer import ReplayBuffer


@dataclass
class Account:
    most_bytes: int = 1000
    kept_bytes: int = 0


def event(number: int, size: int = 10) -> tuple[bytes, ...]:
    return (b"%d" % number, b" " * (size - len(str(number))))


def filled(account: Account, count: int, size: int = 10) -> ReplayBuffer:
    kept = ReplayBuffer(account)
    kept.open()
    for number in range(1, count + 1):
        kept.add(event(number, size))
    return kept


def numbers(kept: ReplayBuffer, number: int) -> list[int] | None:
    events = kept.after(number)
    return None if events is None else [int(parts[0]) for parts in events]


def test_events_behind_a_number_come_once_and_in_order() -> None:
    kept = filled(Account(), 5)

    assert numbers(kept, 0) == [1, 2, 3, 4, 5]
    assert numbers(kept, 3) == [4, 5]
    assert numbers(kept, 5) == []


@pytest.mark.parametrize("number", [-1, 6, 10**12])
def test_number_that_was_never_sent_is_not_kept(number: int) -> None:
    assert numbers(filled(Account(), 5), number) is None


def test_event_before_open_is_numbered_and_not_kept() -> None:
    account = Account()
    kept = ReplayBuffer(account)
    kept.add(event(1))
    kept.open()
    kept.add(event(2))

    assert kept.sent == 2
    assert numbers(kept, 0) is None
    assert numbers(kept, 1) == [2]
    assert account.kept_bytes == 10


def test_event_over_the_most_events_drops_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer, "MOST_EVENTS", 3)
    kept = filled(Account(), 5)

    assert numbers(kept, 1) is None
    assert numbers(kept, 2) == [3, 4, 5]


def test_event_over_the_most_bytes_drops_the_oldest() -> None:
    account = Account(most_bytes=25)
    kept = filled(account, 5)

    assert numbers(kept, 2) is None
    assert numbers(kept, 3) == [4, 5]
    assert account.kept_bytes == 20


def test_last_event_is_kept_however_large_it_is() -> None:
    account = Account(most_bytes=25)
    kept = filled(account, 2, size=100)

    assert numbers(kept, 1) == [2]
    assert account.kept_bytes == 100


def test_smaller_share_drops_the_oldest_with_the_next_event() -> None:
    account = Account()
    kept = filled(account, 5)
    account.most_bytes = 20
    kept.add(event(6))

    assert numbers(kept, 4) == [5, 6]


def test_event_that_was_sent_is_not_copied() -> None:
    kept = ReplayBuffer(Account())
    kept.open()
    sent = event(1)
    kept.add(sent)

    events = kept.after(0)

    assert events is not None
    assert next(events) is sent


def test_close_gives_its_bytes_back_once_and_keeps_nothing() -> None:
    account = Account()
    first, second = filled(account, 3), filled(account, 4)
    first.close()
    first.close()
    first.add(event(4))

    assert account.kept_bytes == 40
    assert numbers(first, 3) is None
    second.close()
    assert account.kept_bytes == 0
