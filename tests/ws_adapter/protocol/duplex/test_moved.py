"""A session that goes on at another worker, which hears the units without an answer from their beginning."""

from tests.ws_adapter.support.conversation import SPEECH, active, append, kinds
from ws_adapter.protocol.core.signals import GoingAway, Moved, Piece, Prefilled, Timings


def test_moved_words_of_an_unanswered_unit_are_forgotten() -> None:
    talk = active()
    talk.client(append(1.0))
    talk.worker(Prefilled(1, Timings()), Piece(1, "Hel", SPEECH))
    told = talk.worker(Moved(0.3714))
    assert told == [{"type": "session.moved", "pause_s": 0.371}]
    told = talk.speak(1, "Hello")
    assert [event["text"] for event in told if "text" in event] == ["Hello"]


def test_moved_muted_unit_is_cancelled_again_once_it_speaks() -> None:
    talk = active()
    talk.client(append(1.0))
    talk.speak(1)
    talk.client(append(1.0))
    talk.client(append(1.0, force_listen=True))
    assert talk.cancelled == [2]
    talk.worker(Moved(1.0))
    talk.worker(Piece(2, "more", SPEECH))
    assert talk.cancelled == [2, 2]
    assert kinds(talk.finish(2)) == ["listen"]


def test_moved_input_that_waited_is_not_late() -> None:
    talk = active(max_lag_s=2.0)
    for _ in range(6):
        talk.client(append(1.0))
    talk.now += 20.0
    talk.worker(Moved(20.0))
    told = [event for unit in range(1, 7) for event in talk.finish(unit)]
    assert kinds(told) == ["listen"] * 6
    assert not any(event["metrics"].get("dropped") for event in told)


def test_moved_worker_that_leaves_is_left_behind() -> None:
    talk = active()
    talk.worker(GoingAway(5.0))
    talk.worker(Moved(0.1))
    talk.wait(30.0)
    assert talk.closed is None
