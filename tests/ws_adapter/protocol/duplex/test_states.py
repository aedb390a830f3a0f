"""The state table of the full-duplex dialect: every cell, and what a refused event leaves behind."""

import pytest

from antiphon.contract import Reason
from tests.ws_adapter.support.conversation import (
    CLOSE,
    INIT,
    Conversation,
    Event,
    append,
    codes,
    kinds,
    ready_signal,
)
from ws_adapter.protocol.core.machine import Place
from ws_adapter.protocol.core.signals import GoingAway
from ws_adapter.protocol.core.state import State
from ws_adapter.protocol.wire.errors import CloseCode

UNKNOWN = {"type": "response.cancel"}
BAD_INIT = {"type": "session.init", "payload": {"config": {"top_k": 0}}}
PLACE = Place(2, 34.96, "ticket_5f0c9a17be42", 3, False)


def in_state(state: State, **options: object) -> Conversation:
    talk = Conversation(**options)  # type: ignore[arg-type]
    if state is State.QUEUED:
        return talk
    talk.connect()
    if state is State.CONNECTED:
        return talk
    talk.client(INIT)
    if state is State.CONFIGURING:
        return talk
    talk.worker(ready_signal())
    if state is State.ACTIVE:
        return talk
    talk.client(CLOSE)
    if state is State.CLOSED:
        talk.dialect.disconnected()
    return talk


def close_code(talk: Conversation) -> int | None:
    return talk.closed and talk.closed.code


def test_first_queue_position_is_queued_event_and_later_one_is_update() -> None:
    talk = Conversation()
    first = talk.do(talk.dialect.queued(PLACE))
    second = talk.do(talk.dialect.queued(Place(1, 12.5, "ticket_5f0c9a17be42", 2, False)))
    waiting = {"estimate_is_guess": False, "ticket_id": "ticket_5f0c9a17be42"}
    assert first == [
        waiting | {"type": "session.queued", "position": 2, "estimated_wait_s": 35.0, "queue_length": 3}
    ]
    assert second == [
        waiting | {"type": "session.queue_update", "position": 1, "estimated_wait_s": 12.5, "queue_length": 2}
    ]


def test_queue_done_comes_without_a_wait_too() -> None:
    talk = Conversation()
    talk.connect()
    assert talk.sent == [{"type": "session.queue_done"}]
    assert talk.dialect.state is State.CONNECTED


def test_another_worker_gets_the_config_again_without_a_word_to_the_client() -> None:
    talk = in_state(State.CONFIGURING)
    assert talk.do(talk.dialect.queued(PLACE)) == []
    assert talk.do(talk.dialect.granted(talk.now)) == []
    assert len(talk.configured) == 2
    assert talk.configured[0].setup == talk.configured[1].setup


def test_init_while_queued_is_held_and_used_at_the_grant() -> None:
    talk = in_state(State.QUEUED)
    assert codes(talk.client(BAD_INIT)) == ["invalid_payload"]
    assert talk.client(INIT) == []
    assert codes(talk.client(INIT)) == ["invalid_event"]
    assert talk.configured == []
    talk.connect()
    assert len(talk.configured) == 1
    assert talk.dialect.state is State.CONFIGURING


def test_invalid_init_while_connected_can_be_corrected() -> None:
    talk = in_state(State.CONNECTED)
    assert codes(talk.client(BAD_INIT)) == ["invalid_payload"]
    assert talk.dialect.state is State.CONNECTED
    talk.client(INIT)
    assert talk.dialect.state is State.CONFIGURING


@pytest.mark.parametrize("state", [State.CONFIGURING, State.ACTIVE])
def test_init_in_a_later_state(state: State) -> None:
    talk = in_state(state)
    assert codes(talk.client(INIT)) == ["invalid_event"]
    assert talk.dialect.state is state


@pytest.mark.parametrize("state", [State.QUEUED, State.CONNECTED])
def test_input_before_init(state: State) -> None:
    error = {
        "code": "not_ready",
        "message": "input.append before session.init",
        "type": "client_error",
        "input_id": "in-1",
    }
    assert in_state(state).client(append(input_id="in-1")) == [{"type": "error", "error": error}]


@pytest.mark.parametrize("state", [State.QUEUED, State.CONFIGURING])
def test_input_behind_an_init_runs_after_the_session_began(state: State) -> None:
    talk = in_state(state)
    if state is State.QUEUED:
        talk.client(INIT)
    assert talk.client(append(input_id="early")) == []
    talk.wait(30)
    if state is State.QUEUED:
        talk.connect()
    assert talk.runs == []
    talk.worker(ready_signal())
    assert [run.unit for run in talk.runs] == [1]
    assert talk.finish(1)[0]["input_id"] == "early"


def test_input_while_active_runs_at_once_unless_it_is_invalid() -> None:
    talk = in_state(State.ACTIVE)
    assert codes(talk.client({"type": "input.append", "input": {"audio": "%%%"}})) == ["invalid_payload"]
    assert talk.runs == []
    assert talk.dialect.state is State.ACTIVE
    talk.client(append())
    assert [run.unit for run in talk.runs] == [1]


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
    assert close_code(talk) == CloseCode.NORMAL


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


@pytest.mark.parametrize("state", [State.CLOSING, State.CLOSED])
@pytest.mark.parametrize("event", [INIT, append(), CLOSE, UNKNOWN, b"no json", b"\xff"])
def test_nothing_is_said_after_the_end(state: State, event: Event | bytes) -> None:
    talk = in_state(state)
    assert talk.client(event) == []
    assert talk.do(talk.dialect.binary_frame(talk.now)) == []
    assert talk.worker(ready_signal()) == []
    assert talk.do(talk.dialect.shut_down()) == []
    assert talk.do(talk.dialect.slow_consumer()) == []
    assert talk.dialect.deadline is None
    assert talk.do(talk.dialect.tick(talk.now + 9999, True)) == []


def test_init_timeout_counts_from_queue_done_and_ignores_an_invalid_init() -> None:
    talk = in_state(State.QUEUED)
    talk.wait(500)
    talk.connect()
    assert talk.wait(19) == []
    talk.client(BAD_INIT)
    assert talk.wait(0.9) == []
    events = talk.wait(0.2)
    assert [(e["type"], e["reason"]) for e in events] == [("session.closed", "timeout")]
    assert close_code(talk) == CloseCode.NORMAL


@pytest.mark.parametrize("state", [State.CONFIGURING, State.ACTIVE])
def test_session_limit_counts_from_queue_done(state: State) -> None:
    talk = in_state(state)
    assert kinds(talk.wait(599.9)) == []
    events = talk.wait(0.2)
    assert [(e["type"], e["reason"]) for e in events] == [("session.closed", "timeout")]


def test_session_limit_can_be_off() -> None:
    talk = in_state(State.ACTIVE, session_limit_s=0.0)
    assert talk.wait(10_000) == []


def test_idle_session_times_out_only_if_other_sessions_wait() -> None:
    talk = in_state(State.ACTIVE)
    assert talk.wait(200, others_wait=False) == []
    events = talk.wait(1.1, others_wait=True)
    assert events[-1]["reason"] == "timeout"


def test_append_keeps_a_session_from_being_idle() -> None:
    talk = in_state(State.ACTIVE, silence_tail_units=0)
    talk.wait(59, others_wait=True)
    talk.client(append())
    talk.finish(1)
    assert talk.wait(59, others_wait=True) == []
    assert kinds(talk.wait(2, others_wait=True)) == ["session.closed"]


@pytest.mark.parametrize(
    ("reason", "code", "closed", "close"),
    [
        (Reason.WORKER_LOST, "inference_error", "backend_error", 1011),
        (Reason.UNIT_TIMEOUT, "inference_error", "backend_error", 1011),
        (Reason.ENGINE_FATAL, "inference_error", "backend_error", 1011),
        (Reason.LEASE_REVOKED, "inference_error", "backend_error", 1011),
        (Reason.UNIT_WINDOW, "inference_error", "backend_error", 1011),
        (Reason.KV_EXHAUSTED, "inference_error", "backend_error", 1013),
        (Reason.CONFIG_INVALID, "invalid_payload", "backend_error", 1008),
        (Reason.SESSION_LIMIT, None, "timeout", 1000),
        (Reason.IDLE_TIMEOUT, None, "timeout", 1000),
        (Reason.NO_FREE_SLOT, "worker_busy", None, 1013),
        (Reason.QUEUE_FULL, "queue_full", None, 1013),
        (Reason.LOADING, "service_unavailable", None, 1013),
        (Reason.ATTACH_TIMEOUT, "worker_connect_failed", None, 1013),
        (Reason.MODE_UNSUPPORTED, "unsupported_mode", None, 1008),
    ],
)
def test_end_of_the_worker_session_in_public(
    reason: Reason, code: str | None, closed: str | None, close: int
) -> None:
    talk = in_state(State.ACTIVE)
    events = talk.fail(reason)
    assert codes(events) == ([code] if code else [])
    assert [e["reason"] for e in events if e["type"] == "session.closed"] == ([closed] if closed else [])
    assert close_code(talk) == close
    assert talk.after_close == []


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_public_end(reason: Reason) -> None:
    talk = in_state(State.ACTIVE)
    talk.fail(reason)
    assert talk.closed is not None
    assert len(talk.closed.reason.encode()) <= 123


@pytest.mark.parametrize("reason", [Reason.MODEL_NOT_FOUND, Reason.VOICE_NOT_FOUND])
def test_refused_settings_can_be_corrected_until_the_init_clock_ends(reason: Reason) -> None:
    talk = in_state(State.CONFIGURING)
    talk.wait(30)
    assert codes(talk.fail(reason)) == ["invalid_payload"]
    assert talk.dialect.state is State.CONNECTED
    talk.do(talk.dialect.granted(talk.now))
    talk.client(INIT)
    assert kinds(talk.worker(ready_signal())) == ["session.created"]

    unconcerned = in_state(State.CONFIGURING)
    unconcerned.wait(30)
    unconcerned.fail(reason)
    assert unconcerned.wait(19.9) == []
    assert kinds(unconcerned.wait(0.2)) == ["session.closed"]


@pytest.mark.parametrize("fails", [False, True])
def test_worker_going_away_ends_the_session_when_its_time_is_up_or_it_is_gone(fails: bool) -> None:
    talk = in_state(State.ACTIVE)
    talk.worker(GoingAway(5.0))
    assert talk.wait(4.9) == []
    events = talk.fail(Reason.DRAINING) if fails else talk.wait(0.2)
    assert [e.get("reason") for e in events] == ["server_shutdown"]
    assert close_code(talk) == CloseCode.SERVICE_RESTART


def test_session_that_another_worker_takes_does_not_end_with_the_first_one() -> None:
    talk = in_state(State.CONFIGURING)
    talk.worker(GoingAway(5.0))
    talk.dialect.displaced()
    talk.connect()
    talk.worker(ready_signal())
    assert talk.wait(6.0) == []


def test_shutdown_while_queued() -> None:
    talk = in_state(State.QUEUED)
    assert codes(talk.do(talk.dialect.shut_down())) == ["service_unavailable"]
    assert close_code(talk) == CloseCode.TRY_AGAIN_LATER


@pytest.mark.parametrize("state", [State.CONNECTED, State.CONFIGURING, State.ACTIVE])
def test_shutdown_with_a_slot(state: State) -> None:
    talk = in_state(state)
    assert [e["reason"] for e in talk.do(talk.dialect.shut_down())] == ["server_shutdown"]
    assert close_code(talk) == CloseCode.SERVICE_RESTART


def test_slow_consumer() -> None:
    talk = in_state(State.ACTIVE)
    assert talk.do(talk.dialect.slow_consumer())[0]["reason"] == "slow_consumer"
    assert close_code(talk) == CloseCode.POLICY_VIOLATION
