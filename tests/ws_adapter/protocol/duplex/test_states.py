"""The state table of the full-duplex dialect: every cell, and what a refused event leaves behind."""

from typing import Any

import pytest

from antiphon.contract import Reason
from tests.ws_adapter.support.conversation import (
    CLOSE,
    INIT,
    Conversation,
    append,
    bring,
    codes,
    kinds,
    ready_signal,
)
from ws_adapter.protocol.core.signals import GoingAway
from ws_adapter.protocol.core.state import State
from ws_adapter.protocol.wire.errors import CloseCode

UNKNOWN = {"type": "response.cancel"}


def in_state(state: State, **options: Any) -> Conversation:
    talk = Conversation(**options)
    bring(talk, state)
    return talk


@pytest.mark.parametrize("state", [State.QUEUED, State.CONNECTED])
def test_input_before_init(state: State) -> None:
    error = {
        "code": "not_ready",
        "message": "input.append before session.init",
        "type": "client_error",
        "input_id": "in-1",
    }
    assert in_state(state).client(append(input_id="in-1")) == [{"type": "error", "error": error}]


def test_held_input_does_not_age_while_it_waits() -> None:
    talk = in_state(State.QUEUED)
    talk.client(INIT)
    for _ in range(5):
        talk.client(append())
        talk.wait(1)
    talk.wait(100)

    talk.connect()
    talk.worker(ready_signal())
    for unit in range(1, 6):
        talk.finish(unit)

    assert kinds(talk.sent)[-5:] == ["listen"] * 5
    assert all("dropped" not in event["metrics"] for event in talk.sent[-5:])


def test_held_input_is_bounded_and_dropped_units_are_counted() -> None:
    talk = in_state(State.QUEUED, max_waiting_units=4)
    talk.client(INIT)
    for number in range(6):
        talk.client(append(input_id=f"in-{number}"))
    talk.connect()
    talk.worker(ready_signal())
    first = talk.finish(1)[0]
    assert first["input_id"] == "in-2"
    assert first["metrics"]["dropped_total"] == 2
    assert first["chunk_index"] == 0


@pytest.mark.parametrize("state", [State.QUEUED, State.CONNECTED, State.CONFIGURING, State.ACTIVE])
def test_close_and_unknown_event_in_every_state(state: State) -> None:
    talk = in_state(state)
    assert codes(talk.client(UNKNOWN)) == ["unknown_event"]
    assert talk.dialect.state is state
    events = talk.client(CLOSE)
    assert [(e["type"], e["reason"]) for e in events] == [("session.closed", "user_stop")]
    assert ("session_id" in events[0]) == (state is State.ACTIVE)
    assert talk.close_code == CloseCode.NORMAL


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "user_stop"),
        ("user_stop", "user_stop"),
        ("page_2_hidden", "page_2_hidden"),
        ("Because!", "client_closed"),
        ("x" * 65, "client_closed"),
    ],
)
def test_reason_of_session_closed(given: str | None, told: str) -> None:
    talk = in_state(State.ACTIVE)
    assert talk.client({"type": "session.close", "reason": given})[0]["reason"] == told


def test_idle_session_times_out_only_if_other_sessions_wait() -> None:
    talk = in_state(State.ACTIVE, session_limit_s=0.0)
    assert talk.wait(10_000, others_wait=False) == []
    events = talk.wait(1.1, others_wait=True)
    assert events[-1]["reason"] == "timeout"


def test_append_keeps_a_session_from_being_idle() -> None:
    talk = in_state(State.ACTIVE, silence_tail_units=0)
    talk.wait(59, others_wait=True)
    talk.client(append())
    talk.finish(1)
    assert talk.wait(59, others_wait=True) == []
    assert kinds(talk.wait(2, others_wait=True)) == ["session.closed"]


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_public_end(reason: Reason) -> None:
    talk = in_state(State.ACTIVE)
    talk.fail(reason)
    assert talk.closed is not None
    assert len(talk.closed.reason.encode()) <= 123


def test_session_that_another_worker_takes_does_not_end_with_the_first_one() -> None:
    talk = in_state(State.CONFIGURING)
    talk.worker(GoingAway(5.0))
    talk.dialect.displaced()
    talk.connect()
    talk.worker(ready_signal())
    assert talk.wait(6.0) == []
