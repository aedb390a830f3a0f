"""The state table of `/ws/duplex`: every cell, its clocks, and how a session ends."""

import pytest

from antiphon.contract import Reason
from tests.ws_adapter.support.conversation import Event, ready_signal
from tests.ws_adapter.support.duplex_conversation import (
    INTERRUPT,
    PAUSE,
    PREPARE,
    RESUME,
    STOP,
    DuplexConversation,
    chunk,
    duplex_in,
    names,
    pictured,
)
from ws_adapter.protocol.core.machine import Place
from ws_adapter.protocol.core.signals import GoingAway
from ws_adapter.protocol.core.state import State
from ws_adapter.protocol.wire.errors import QUEUE_TIMEOUT, CloseCode

BAD_PREPARE: Event = {"type": "prepare", "config": {"top_k": 0}}
UNKNOWN: Event = {"type": "response.cancel"}
FRAME: Event = {"type": "video_frame", "frame_base64": pictured()}
PLACE = Place(2, 34.96, "ticket_5f0c9a17be42", 3, False)

OPEN_STATES = [State.QUEUED, State.CONNECTED, State.CONFIGURING, State.ACTIVE, State.PAUSED]


def close_code(talk: DuplexConversation) -> int | None:
    return talk.closed and talk.closed.code


def stopped(reason: str) -> Event:
    return {"type": "stopped", "session_id": "omni_k3f9", "reason": reason}


def test_first_queue_position_is_queued_event_and_later_one_is_update() -> None:
    talk = DuplexConversation()
    first = talk.do(talk.dialect.queued(PLACE))
    second = talk.do(talk.dialect.queued(Place(1, 12.5, "ticket_5f0c9a17be42", 2, False)))
    waiting = {"estimate_is_guess": False, "ticket_id": "ticket_5f0c9a17be42"}
    first_wait = {"estimated_wait_s": 35.0, "eta_seconds": 35.0}
    second_wait = {"estimated_wait_s": 12.5, "eta_seconds": 12.5}
    assert first == [waiting | first_wait | {"type": "queued", "position": 2, "queue_length": 3}]
    assert second == [waiting | second_wait | {"type": "queue_update", "position": 1, "queue_length": 2}]


@pytest.mark.parametrize(
    ("bare", "waits", "told"),
    [(False, False, ["queue_done"]), (True, False, []), (True, True, ["queued", "queue_done"])],
)
def test_queue_done_is_sent_after_wait_or_for_path_id(bare: bool, waits: bool, told: list[str]) -> None:
    talk = DuplexConversation(bare=bare)
    if waits:
        talk.do(talk.dialect.queued(PLACE))
    talk.connect()
    assert names(talk.sent) == told
    assert talk.dialect.state is State.CONNECTED


def test_queued_prepare_is_held_and_a_second_one_passed_over() -> None:
    talk = duplex_in(State.QUEUED)
    assert talk.client(PREPARE) == []
    assert talk.client({"type": "prepare", "system_prompt": "Another."}) == []
    assert talk.configured == []
    talk.connect()
    assert talk.dialect.state is State.CONFIGURING
    assert [opened.setup.system_prompt for opened in talk.configured] == ["Answer briefly."]


def test_connected_prepare_is_preparing_and_a_second_one_ignored() -> None:
    talk = duplex_in(State.CONNECTED)
    for _ in range(2):
        assert talk.client(PREPARE) == []
        assert talk.dialect.state is State.CONFIGURING
    assert len(talk.configured) == 1
    assert names(talk.worker(ready_signal())) == ["prepared"]


@pytest.mark.parametrize("state", [State.QUEUED, State.CONNECTED])
def test_invalid_prepare_can_be_corrected(state: State) -> None:
    talk = duplex_in(state)
    assert names(talk.client(BAD_PREPARE)) == ["error:invalid_payload"]
    assert talk.dialect.state is state
    assert talk.client(PREPARE) == []
    if state is State.QUEUED:
        talk.connect()
    assert len(talk.configured) == 1


@pytest.mark.parametrize("state", [State.ACTIVE, State.PAUSED])
def test_prepare_of_a_prepared_session_is_invalid(state: State) -> None:
    talk = duplex_in(state)
    assert names(talk.client(PREPARE)) == ["error:invalid_event"]
    assert talk.dialect.state is state


@pytest.mark.parametrize("event", [chunk(), FRAME])
@pytest.mark.parametrize("state", [State.QUEUED, State.CONNECTED])
def test_input_before_prepare_is_not_ready(state: State, event: Event) -> None:
    text = f"{event['type']} before prepare"
    told = {"type": "error", "error": text, "code": "not_ready", "message": text}
    assert duplex_in(state).client(event) == [told]


@pytest.mark.parametrize("state", [State.QUEUED, State.CONNECTED, State.CONFIGURING])
def test_steering_before_prepared_is_not_ready(state: State) -> None:
    talk = duplex_in(state)
    for event in (PAUSE, RESUME, INTERRUPT):
        assert names(talk.client(event)) == ["error:not_ready"]
        assert talk.dialect.state is state


@pytest.mark.parametrize("state", [State.QUEUED, State.CONFIGURING, State.ACTIVE])
def test_input_behind_prepare_is_held_until_the_session_is_active(state: State) -> None:
    talk = duplex_in(state)
    if state is State.QUEUED:
        talk.client(PREPARE)
    assert talk.client(FRAME) == []
    assert talk.client(chunk()) == []
    if state is not State.ACTIVE:
        assert talk.runs == []
    if state is State.QUEUED:
        talk.connect()
    if state is not State.ACTIVE:
        talk.worker(ready_signal())
    assert [(run.unit, len(run.frames)) for run in talk.runs] == [(1, 1)]


@pytest.mark.parametrize("event", [chunk(), FRAME])
def test_paused_input_is_refused(event: Event) -> None:
    talk = duplex_in(State.PAUSED)
    assert talk.client(event) == [
        {"type": "error", "error": "Worker is paused", "code": "paused", "message": "Worker is paused"}
    ]
    talk.client(RESUME)
    talk.client(chunk())
    assert [run.frames for run in talk.runs] == [()]


def test_pause_without_a_timeout_lasts_as_long_as_the_server_says() -> None:
    talk = duplex_in(State.ACTIVE, pause_timeout_s=7.0)
    assert talk.client(PAUSE) == [{"type": "paused", "timeout": 7}]
    assert talk.dialect.state is State.PAUSED


@pytest.mark.parametrize(
    ("given", "told"), [(None, 60), (0.2, 1), (-5, 1), (1, 1), (30, 30), (300, 300), (301, 300), (1e300, 300)]
)
def test_pause_timeout_is_clamped(given: float | None, told: float) -> None:
    talk = duplex_in(State.ACTIVE)
    assert talk.client({"type": "pause", "timeout": given}) == [{"type": "paused", "timeout": told}]
    assert talk.dialect.state is State.PAUSED


@pytest.mark.parametrize("given", ["30", True, [30], 10**400])
def test_pause_timeout_must_be_a_number(given: object) -> None:
    talk = duplex_in(State.ACTIVE)
    events = talk.client({"type": "pause", "timeout": given})
    assert names(events) == ["error:invalid_payload"]
    assert events[0]["error"].startswith("timeout: expected a number, got ")
    assert talk.dialect.state is State.ACTIVE


def test_units_in_flight_and_carried_audio_are_answered_during_a_pause() -> None:
    talk = duplex_in(State.ACTIVE)
    talk.client(chunk(3.5))
    talk.client(PAUSE)
    for unit in (1, 2, 3):
        assert names(talk.finish(unit)) == ["listen"]
    talk.wait(1.25)
    assert [run.unit for run in talk.runs] == [1, 2, 3, 4]
    assert names(talk.finish(4)) == ["listen"]


def test_paused_pause_restarts_the_timer() -> None:
    talk = duplex_in(State.ACTIVE)
    talk.client({"type": "pause", "timeout": 10})
    talk.wait(9)
    assert talk.client({"type": "pause", "timeout": 5}) == [{"type": "paused", "timeout": 5}]
    assert talk.wait(4.9) == []
    assert ends_with_timeout(talk, talk.wait(0.1), "Pause timeout (5.0s)")


@pytest.mark.parametrize("state", [State.PAUSED, State.ACTIVE])
def test_resume(state: State) -> None:
    talk = duplex_in(state)
    assert talk.client(RESUME) == [{"type": "resumed"}]
    assert talk.dialect.state is State.ACTIVE
    assert talk.wait(120) == []


@pytest.mark.parametrize("state", [State.ACTIVE, State.PAUSED])
def test_interrupt_makes_the_next_unit_listen(state: State) -> None:
    talk = duplex_in(state)
    assert talk.client(INTERRUPT) == [{"type": "interrupted"}]
    assert talk.dialect.state is state
    talk.client(RESUME)
    talk.client(chunk(2.0))
    assert [run.force_listen for run in talk.runs] == [True, False]


@pytest.mark.parametrize("state", OPEN_STATES)
def test_stop_diagnostic_and_unknown_event_in_every_state(state: State) -> None:
    talk = duplex_in(state)
    text = "Unknown message type: response.cancel"
    assert talk.client(UNKNOWN) == [
        {"type": "error", "error": text, "code": "unknown_event", "message": text}
    ]
    assert talk.client(b'{"type":"client_diagnostic","drift_ms":12}') == []
    assert talk.notes == ["42 bytes, sha256 4a22c8a88691"]
    assert talk.dialect.state is state
    assert talk.client(STOP) == [stopped("user_stop")]
    assert close_code(talk) == CloseCode.NORMAL


@pytest.mark.parametrize("state", [State.CLOSING, State.CLOSED])
@pytest.mark.parametrize("event", [PREPARE, chunk(), PAUSE, STOP, UNKNOWN, b"no json", b"\xff"])
def test_nothing_is_said_after_the_end(state: State, event: Event | bytes) -> None:
    talk = duplex_in(state)
    assert talk.client(event) == []
    assert talk.worker(ready_signal()) == []
    assert talk.do(talk.dialect.shut_down()) == []
    assert talk.do(talk.dialect.tick(talk.now + 9999, True)) == []


def ends_with_timeout(talk: DuplexConversation, events: list[Event], reason: str) -> bool:
    return events == [{"type": "timeout", "reason": reason}] and close_code(talk) == CloseCode.NORMAL


def test_prepare_timeout() -> None:
    talk = duplex_in(State.QUEUED)
    talk.wait(500)
    talk.connect()
    assert talk.wait(19.9) == []
    assert ends_with_timeout(talk, talk.wait(0.1), "Prepare timeout (20.0s)")


@pytest.mark.parametrize("state", [State.CONFIGURING, State.ACTIVE, State.PAUSED])
def test_session_limit(state: State) -> None:
    talk = duplex_in(state, session_limit_s=40.0)
    assert talk.wait(39.9) == []
    assert ends_with_timeout(talk, talk.wait(0.1), "Session limit (40.0s)")


def test_resume_without_a_pause_is_no_sign_of_life() -> None:
    talk = duplex_in(State.ACTIVE)
    talk.wait(59, others_wait=True)
    talk.client(RESUME)
    assert ends_with_timeout(talk, talk.wait(1, others_wait=True), "Idle timeout (60.0s)")


def test_idle_clock_stands_still_during_a_pause() -> None:
    talk = duplex_in(State.ACTIVE, session_limit_s=0)
    talk.wait(50, others_wait=True)
    talk.client({"type": "pause", "timeout": 100})
    assert talk.wait(99, others_wait=True) == []
    talk.client(RESUME)
    assert talk.wait(59, others_wait=True) == []
    assert ends_with_timeout(talk, talk.wait(1, others_wait=True), "Idle timeout (60.0s)")


@pytest.mark.parametrize("state", [State.CONFIGURING, State.ACTIVE, State.PAUSED])
@pytest.mark.parametrize(
    ("reason", "told", "close"),
    [
        (Reason.WORKER_LOST, ["error:inference_error", "stopped"], 1011),
        (Reason.KV_EXHAUSTED, ["error:inference_error", "stopped"], 1013),
        (Reason.CONFIG_INVALID, ["error:invalid_payload", "stopped"], 1008),
        (Reason.MODE_UNSUPPORTED, ["error:unsupported_mode"], 1008),
    ],
)
def test_worker_failed(state: State, reason: Reason, told: list[str], close: int) -> None:
    talk = duplex_in(state)
    events = talk.fail(reason)
    assert names(events) == told
    if "stopped" in told:
        assert events[-1] == stopped("error")
    assert close_code(talk) == close


@pytest.mark.parametrize(
    ("reason", "told"), [(Reason.SESSION_LIMIT, "Session limit"), (Reason.IDLE_TIMEOUT, "Idle timeout")]
)
def test_worker_ran_out_of_patience(reason: Reason, told: str) -> None:
    talk = duplex_in(State.ACTIVE)
    assert ends_with_timeout(talk, talk.fail(reason), told)


def test_refused_settings_can_be_corrected() -> None:
    talk = duplex_in(State.CONFIGURING)
    assert names(talk.fail(Reason.VOICE_NOT_FOUND)) == ["error:invalid_payload"]
    assert talk.dialect.state is State.CONNECTED
    talk.client(PREPARE)
    assert names(talk.worker(ready_signal())) == ["prepared"]


@pytest.mark.parametrize("state", [State.CONNECTED, State.CONFIGURING, State.ACTIVE, State.PAUSED])
def test_shutdown_with_a_slot(state: State) -> None:
    talk = duplex_in(state)
    assert talk.do(talk.dialect.shut_down()) == [stopped("server_shutdown")]
    assert close_code(talk) == 1012


def test_end_without_a_slot_is_an_error_alone() -> None:
    drained, waiting = duplex_in(State.QUEUED), duplex_in(State.QUEUED)
    assert names(drained.do(drained.dialect.shut_down())) == ["error:service_unavailable"]
    (event,) = waiting.do(waiting.dialect.refused(QUEUE_TIMEOUT))
    assert names([event]) == ["error:queue_timeout"]
    assert event["error"] == event["message"]
    assert close_code(drained) == close_code(waiting) == 1013


def test_worker_goes_away_or_client_does_not_read() -> None:
    left, slow = duplex_in(State.ACTIVE), duplex_in(State.ACTIVE)
    left.worker(GoingAway(5.0))
    assert left.wait(4.9) == []
    assert left.wait(0.1) == [stopped("server_shutdown")]
    assert slow.do(slow.dialect.slow_consumer()) == [stopped("error")]
    assert close_code(slow) == 1008
