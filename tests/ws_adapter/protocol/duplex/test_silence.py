"""Time goes on for clients that send an utterance and then wait."""

import pytest

from tests.ws_adapter.support.conversation import Conversation, active, append, kinds, ready_signal
from ws_adapter.protocol.core.signals import Finalized, UnitDone, UnitEnd


@pytest.fixture
def talk() -> Conversation:
    return active(silence_tail_units=10)


def listen_through(talk: Conversation, seconds: float) -> list[float]:
    """Lets `seconds` pass while the worker listens at once; returns when each unit was given to it."""
    start, given, answered = talk.now, [], len(talk.runs)
    while talk.now < start + seconds:
        talk.wait(1 / 16)
        for run in talk.runs[answered:]:
            given.append(talk.now - start)
            talk.finish(run.unit)
        answered = len(talk.runs)
    return given


def test_burst_is_followed_by_silence(talk: Conversation) -> None:
    talk.client(append(4.0, input_id="q"))
    talk.finish_all()
    given = listen_through(talk, 15)
    assert given == [1.25 + n for n in range(10)]
    tail = talk.sent[-10:]
    assert kinds(tail) == ["listen"] * 10
    assert all(event["metrics"]["injected_silence"] for event in tail)
    assert {event["input_id"] for event in tail} == {"q"}
    assert talk.runs[-1].audio == bytes(64_000)


def test_burst_may_come_in_many_appends(talk: Conversation) -> None:
    for _ in range(8):
        talk.client(append(0.5))
        talk.wait(1 / 8)
    talk.finish_all()
    assert listen_through(talk, 2)[0] == 1.125


@pytest.mark.parametrize(
    ("seconds", "lasts", "given"),
    [(1.0, 5.5, [3.0, 4.0, 5.0]), (0.3, 4.5, [1.25, 3.0, 4.0]), (1.5, 3.5, [1.25, 3.0])],
)
def test_isolated_append_is_followed_by_silence_later(
    talk: Conversation, seconds: float, lasts: float, given: list[float]
) -> None:
    talk.client(append(seconds))
    talk.finish_all()
    assert listen_through(talk, lasts) == given


def test_continuous_stream_that_stops_gets_no_silence(talk: Conversation) -> None:
    for _ in range(5):
        talk.client(append(1.0))
        talk.finish_all(len(talk.runs))
        talk.wait(1.0)
    assert listen_through(talk, 30) == []


def test_appends_three_seconds_apart_are_each_isolated(talk: Conversation) -> None:
    talk.client(append(1.0))
    talk.finish_all()
    talk.wait(3.0)
    talk.client(append(1.0))
    talk.finish_all(2)
    assert 3.0 in listen_through(talk, 3.5)


def test_silence_goes_on_while_the_model_speaks_and_stops_at_the_end_of_its_turn() -> None:
    talk = active(silence_tail_units=2)
    talk.client(append(2.0))
    talk.finish_all()
    unit = 2
    for _ in range(2):
        talk.wait(1.25)
        unit += 1
    talk.finish(3)
    talk.speak(4)
    for unit in range(5, 12):
        talk.wait(1.0)
        assert len(talk.runs) == unit
        talk.speak(unit, end=UnitEnd.TURN if unit == 11 else UnitEnd.CHUNK)

    talk.wait(60)

    assert len(talk.runs) == 11
    assert talk.sent[-1]["reason"] == "turn_end"


def test_turn_that_answers_the_last_real_unit_needs_no_silence(talk: Conversation) -> None:
    talk.client(append(2.0))
    talk.finish(1)
    talk.speak(2, end=UnitEnd.TURN)
    assert listen_through(talk, 20) == []


def test_turn_that_ended_before_all_was_heard_is_no_answer() -> None:
    talk = active(silence_tail_units=2)
    talk.client(append(4.0))
    talk.speak(1, end=UnitEnd.TURN)
    talk.finish_all(2)
    assert listen_through(talk, 20) == [1.25, 2.25]


def test_append_stops_the_silence(talk: Conversation) -> None:
    talk.client(append(2.0))
    talk.finish_all()
    assert listen_through(talk, 2.5) == [1.25, 2.25]
    talk.client(append(1.0, input_id="b"))
    talk.finish_all(5)
    talk.wait(0.9)
    talk.client(append(1.0, input_id="c"))
    talk.finish_all(6)
    assert listen_through(talk, 20) == []


def test_interruption_without_audio_is_no_utterance(talk: Conversation) -> None:
    talk.client({"type": "input.append", "input": {"force_listen": True}})
    talk.finish_all()
    assert listen_through(talk, 10) == []


def test_silence_waits_until_real_units_have_run(talk: Conversation) -> None:
    talk.client(append(5.0))
    talk.wait(10)
    assert len(talk.runs) == 2
    for unit in (1, 2, 3, 4):
        talk.worker(UnitDone(unit, UnitEnd.LISTEN, 100), Finalized(unit))
    talk.wait(0)
    assert len(talk.runs) == 6
    assert talk.runs[5].audio == bytes(64_000)


def test_held_burst_counts_from_the_beginning_of_the_session() -> None:
    talk = Conversation()
    talk.client({"type": "session.init", "payload": {}})
    talk.client(append(3.0))
    talk.wait(30)
    talk.connect()
    talk.worker(ready_signal())
    talk.finish_all()
    assert listen_through(talk, 2.5) == [1.25, 2.25]


def test_silence_waits_while_the_client_does_not_read(talk: Conversation) -> None:
    talk.client(append(2.0))
    talk.finish_all()
    talk.do(talk.dialect.congested(True, talk.now))
    talk.wait(30)
    assert len(talk.runs) == 2
    talk.do(talk.dialect.congested(False, talk.now))
    talk.wait(0)
    assert len(talk.runs) == 3
