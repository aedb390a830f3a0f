"""The stream that a Live client hears: without a gap, on time, and to be stopped at any moment."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ws_adapter.protocol.live.playout import MOST_CATCH_UP_S, SLICE_S, Playout
from ws_adapter.protocol.live.sound import PCM_24K

SECOND = PCM_24K.bytes_per_s
SLICE = round(SECOND * SLICE_S)


def begun() -> Playout:
    playout = Playout(PCM_24K)
    playout.begin(0.0)
    return playout


@pytest.fixture
def playout() -> Playout:
    return begun()


def run(playout: Playout, until: float) -> bytes:
    """Everything that is due up to a time."""
    heard = b""
    while playout.due_at is not None and playout.due_at <= until:
        heard += b"".join(piece.audio for piece in playout.take(playout.due_at))
    return heard


def test_silence_is_sent_in_real_time_with_a_lead(playout: Playout) -> None:
    heard = run(playout, 10.0)
    assert len(heard) == SECOND * 10 + 2 * SLICE
    assert not any(heard)


def test_playout_speech_follows_audio_already_sent(playout: Playout) -> None:
    run(playout, 1.0)
    playout.put(b"\1" * SECOND, "one")
    heard = run(playout, 2.0)
    assert heard == b"\1" * SECOND


def test_words_come_with_the_audio_in_which_they_begin(playout: Playout) -> None:
    run(playout, 0.99)
    sent = round(playout.sent_s * 1000)
    playout.put(b"\1" * SECOND, "one")
    playout.put(b"\2" * (SECOND // 2), "two")
    words = []
    while playout.due_at is not None and playout.due_at <= 3.0:
        words += [word for piece in playout.take(playout.due_at) for word in piece.words]
    assert [(word.text, word.start_ms - sent, word.end_ms - sent) for word in words] == [
        ("o", 0, 333),
        ("ne", 333, 1000),
        ("two", 1000, 1500),
    ]


@given(st.lists(st.tuples(st.text("ab é日\u0301", max_size=12), st.integers(0, SECOND)), max_size=6))
def test_playout_words_are_sent_once_in_order(said: list[tuple[str, int]]) -> None:
    playout = begun()
    for text, size in said:
        playout.put(b"\1" * (size // 2 * 2), text)
    words = [word for tick in range(40) for piece in playout.take(tick * 0.2) for word in piece.words]
    assert "".join(word.text for word in words) == "".join(text for text, _ in said)
    assert all(word.text for word in words)
    assert all(one.end_ms <= next.start_ms + 1 for one, next in pairwise(words))


def test_words_without_sound_are_said_too(playout: Playout) -> None:
    playout.put(b"", "only text")
    assert not playout.is_empty
    (piece, *_) = playout.take(0.0)
    assert [word.text for word in piece.words] == ["only text"]
    assert playout.is_empty


def test_a_late_second_leaves_no_gap_while_the_lead_lasts(playout: Playout) -> None:
    playout.is_speaking = True
    playout.put(b"\1" * SECOND, "")
    assert run(playout, 0.8) == b"\1" * SECOND
    assert run(playout, 0.85) == b""
    playout.put(b"\2" * SECOND, "")
    assert run(playout, 1.5).strip(b"\2") == b""


def test_a_second_that_does_not_come_is_silence(playout: Playout) -> None:
    playout.is_speaking = True
    playout.put(b"\1" * SECOND, "")
    heard = run(playout, 3.0)
    assert heard[:SECOND] == b"\1" * SECOND
    assert len(heard) > 2 * SECOND
    assert not any(heard[SECOND:])


def test_dropped_speech_is_not_played(playout: Playout) -> None:
    playout.put(b"\1" * SECOND, "one")
    playout.put(b"\2" * SECOND, "two")
    before = run(playout, 0.1)
    playout.drop()
    assert before.strip(b"\1") == b""
    assert len(before) <= round((SLICE_S + 0.1 + SLICE_S) * SECOND)
    assert not any(run(playout, 2.0))


def test_a_rest_is_filled_up_with_silence(playout: Playout) -> None:
    playout.put(b"\1" * 10, "")
    heard = run(playout, 0.0)
    assert heard.rstrip(b"\0") == b"\1" * 10
    assert len(heard) % SLICE == 0


def test_a_client_that_did_not_read_gets_no_old_silence(playout: Playout) -> None:
    """The stream stood still for a minute: what was said comes, and then only what is due now."""
    playout.put(b"\1" * SECOND, "")
    heard = b"".join(piece.audio for piece in playout.take(60.0))
    assert heard[:SECOND] == b"\1" * SECOND
    assert len(heard) <= SECOND + round((MOST_CATCH_UP_S + 2 * SLICE_S) * SECOND)


STEP = st.tuples(st.floats(0.0, 2.0), st.integers(0, 3 * SECOND // 2), st.booleans(), st.booleans())


@given(st.lists(STEP, max_size=12))
def test_never_further_ahead_than_its_lead(steps: list[tuple[float, int, bool, bool]]) -> None:
    """Playout never sends more than the time that has passed, the lead and one slice."""
    playout, now, sent = begun(), 0.0, 0
    for wait, size, speaks, drops in steps:
        now += wait
        playout.is_speaking = speaks
        playout.put(b"\1" * (size // 2 * 2), "")
        if drops:
            playout.drop()
        pieces = playout.take(now)
        assert all(len(piece.audio) == SLICE for piece in pieces)
        sent += sum(len(piece.audio) for piece in pieces)
        assert sent <= (now + SLICE_S + SLICE_S) * SECOND + 1
        assert playout.due_at is not None
        assert playout.due_at > now
