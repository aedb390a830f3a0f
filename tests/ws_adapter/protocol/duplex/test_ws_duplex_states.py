"""The state table of `/ws/duplex`: every cell, its clocks, and how a session ends."""

import pytest

from tests.ws_adapter.support.conversation import Event
from tests.ws_adapter.support.duplex_conversation import (
    INTERRUPT,
    PAUSE,
    RESUME,
    STOP,
    DuplexConversation,
    chunk,
    duplex_in,
    names,
    pictured,
)
from ws_adapter.protocol.core.machine import Place
from ws_adapter.protocol.core.state import State
from ws_adapter.protocol.wire.errors import CloseCode

UNKNOWN: Event = {"type": "response.cancel"}
FRAME: Event = {"type": "video_frame", "frame_base64": pictured()}
PLACE = Place(2, 34.96, "ticket_5f0c9a17be42", 3, False)

OPEN_STATES = [State.QUEUED, State.CONNECTED, State.CONFIGURING, State.ACTIVE, State.PAUSED]


def stopped(reason: str) -> Event:
    return {"type": "stopped", "session_id": "omni_k3f9", "reason": reason}


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


@pytest.mark.parametrize("event", [chunk(), FRAME])
def test_paused_input_is_refused(event: Event) -> None:
    talk = duplex_in(State.PAUSED)
    assert talk.client(event) == [
        {"type": "error", "error": "Worker is paused", "code": "paused", "message": "Worker is paused"}
    ]
    talk.client(RESUME)
    talk.client(chunk())
    assert [run.frames for run in talk.runs] == [()]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        *(({}, 7), ({"timeout": None}, 7)),
        *(({"timeout": 0.2}, 1), ({"timeout": -5}, 1), ({"timeout": 1}, 1), ({"timeout": 30}, 30)),
        *(({"timeout": 300}, 300), ({"timeout": 301}, 300), ({"timeout": 1e300}, 300)),
    ],
)
def test_pause_timeout_is_that_of_the_server_by_default_and_clamped(given: Event, told: float) -> None:
    talk = duplex_in(State.ACTIVE, pause_timeout_s=7.0)
    assert talk.client({**PAUSE, **given}) == [{"type": "paused", "timeout": told}]
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
    assert talk.close_code == CloseCode.NORMAL


def ends_with_timeout(talk: DuplexConversation, events: list[Event], reason: str) -> bool:
    return events == [{"type": "timeout", "reason": reason}] and talk.close_code == CloseCode.NORMAL


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
