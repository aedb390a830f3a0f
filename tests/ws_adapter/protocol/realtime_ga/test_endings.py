"""The slot of a Realtime session, and how its connection ends."""

import json

import pytest

from antiphon.contract import Reason
from tests.support.schemas import Event
from tests.ws_adapter.support.realtime_ga_conversation import (
    CREATE,
    RealtimeGaConversation,
    append,
    begun,
    granted,
    message,
    told,
    update,
)
from ws_adapter.protocol.core.signals import GoingAway
from ws_adapter.protocol.realtime_ga.machine import IDLE_S, MOST_EARLY, MOST_EARLY_BYTES
from ws_adapter.protocol.realtime_ga.worker_slot import OPENS_S
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import VERDICTS, Verdict

MANUAL_UPDATE = update(audio={"input": {"turn_detection": None}})


@pytest.fixture
def session() -> RealtimeGaConversation:
    return begun()


def ended(session: RealtimeGaConversation) -> tuple[int, str]:
    assert session.closed is not None
    return session.closed.code, session.closed.reason


def test_no_model_is_named() -> None:
    session = RealtimeGaConversation(model="")
    assert told(session.sent) == ["error:missing_model"]
    assert ended(session) == (4000, "invalid_request_error.missing_model")
    assert not session.has_slot


def test_unknown_model_is_rejected_by_adapter_or_by_worker() -> None:
    session = RealtimeGaConversation(model="gpt-realtime")
    assert told(session.sent) == ["error:invalid_model"]
    assert "antiphon-mini" in session.sent[0]["error"]["message"]
    assert ended(session) == (4000, "invalid_request_error.invalid_model")
    session = granted(catalogue=None)
    session.client(CREATE)
    assert told(session.fail(Reason.MODEL_NOT_FOUND)) == ["error:invalid_model"]
    assert ended(session) == (4000, "invalid_request_error.invalid_model")


@pytest.mark.parametrize(
    "verdict", [None, VERDICTS[Reason.QUEUE_FULL], errors.NO_WORKER, errors.CONNECT_FAILED]
)
def test_no_slot_in_time_or_at_all(verdict: Verdict | None) -> None:
    session = RealtimeGaConversation()
    assert session.wait(7.9) == []
    (answer,) = session.wait(0.2) if verdict is None else session.do(session.dialect.refused(verdict))
    assert (answer["error"]["code"], answer["error"]["type"]) == ("server_overloaded", "server_error")
    assert ended(session) == (1013, "server_error.server_overloaded")


def test_events_before_slot_are_processed_after_session_created() -> None:
    session = RealtimeGaConversation()
    for event in (MANUAL_UPDATE, message(), {"type": "session.dance"}, CREATE):
        assert session.client(event) == []
    assert told(session.grant()) == [
        "session.created",
        "conversation.created",
        "session.updated",
        "conversation.item.added",
        "conversation.item.done",
        "error:invalid_value",
        "response.created",
    ]


def test_events_before_slot_are_bounded() -> None:
    session = RealtimeGaConversation()
    for i in range(MOST_EARLY + 1):
        if i == MOST_EARLY // 2:
            session.wait(6.0)  # so many at once are too many anyway
        session.client(MANUAL_UPDATE)
    assert ended(session) == (1013, "server_error.server_overloaded")


def test_worker_session_is_configured_at_first_response_or_after_delay() -> None:
    session = begun()
    assert session.configured == []
    session.wait(OPENS_S)
    assert len(session.configured) == 1
    session.ready()
    session.client(CREATE)
    assert len(session.configured) == 1
    assert len(session.runs) == 1


def test_a_slot_of_no_use_is_given_to_others_and_taken_again(session: RealtimeGaConversation) -> None:
    session.answer()
    session.wait(IDLE_S + 1.0, others_wait=True)
    assert not session.has_slot
    assert session.closed is None

    assert told(session.client(CREATE)) == ["response.created"]
    assert session.has_slot
    session.grant()
    session.ready()
    session.say()
    assert told(session.finish())[-1] == "response.done"


def test_slot_without_waiting_sessions_or_in_use_is_kept(session: RealtimeGaConversation) -> None:
    session.wait(10 * IDLE_S)
    assert session.has_slot
    session.respond()
    session.wait(10 * IDLE_S, others_wait=True)
    assert session.has_slot


def test_no_slot_for_a_later_response_fails_it_alone(session: RealtimeGaConversation) -> None:
    session.answer()
    session.wait(IDLE_S + 1.0, others_wait=True)
    session.client(CREATE)
    events = session.wait(8.0)
    assert told(events) == ["error:server_overloaded", "response.done"]
    assert events[-1]["response"]["status"] == "failed"
    assert not session.has_slot
    assert session.closed is None

    session.client(CREATE)
    events = session.do(session.dialect.refused(errors.NO_WORKER))
    assert told(events) == ["error:server_overloaded", "response.done"]


def test_a_worker_that_leaves_is_left_once_it_does_nothing() -> None:
    idle, session = begun(), begun()
    idle.worker(GoingAway(10.0))
    assert not idle.has_slot
    session.respond()
    session.worker(GoingAway(10.0))
    assert session.has_slot
    session.finish()
    assert not session.has_slot


def test_an_hour_is_over(session: RealtimeGaConversation) -> None:
    expires_at = session.sent[0]["session"]["expires_at"]
    assert session.wait(3598.0) == []
    (answer,) = session.wait(3.0)
    assert session.now + 10_000 >= expires_at
    assert answer["error"]["code"] == "session_expired"
    assert "maximum duration of 60 minutes" in answer["error"]["message"]
    assert ended(session) == (1001, "invalid_request_error.session_expired")


@pytest.mark.parametrize(
    ("verdict", "code", "close", "reason"),
    [
        (errors.SERVER_SHUTDOWN, None, 1012, "server_error.server_overloaded"),
        (errors.SLOW, None, 1008, "invalid_request_error.slow_consumer"),
        (errors.KEY_WITHDRAWN, "invalid_api_key", 3000, "invalid_request_error.invalid_api_key"),
        (errors.ADDRESS_FLOOD, "rate_limit_exceeded", 1008, "rate_limit_error.rate_limit_exceeded"),
        (VERDICTS[Reason.WORKER_LOST], "internal_error", 1011, "server_error.internal_error"),
        (errors.NOT_UTF8, None, 1007, "invalid UTF-8"),
    ],
)
def test_ends_from_outside(verdict: Verdict, code: str | None, close: int, reason: str) -> None:
    session = begun()
    session.respond()
    answers = session.do(session.dialect.ended(verdict))
    assert told(answers) == ([f"error:{code}"] if code else [])
    assert ended(session) == (close, reason)
    assert session.dialect.detected([0.9] * 9, session.now) == []


def test_drain_asks_queued_clients_to_retry() -> None:
    waiting, talking = RealtimeGaConversation(), begun()
    assert told(waiting.do(waiting.dialect.shut_down())) == ["error:server_overloaded"]
    assert ended(waiting)[0] == 1013
    assert talking.do(talking.dialect.shut_down()) == []
    assert ended(talking)[0] == 1012


def test_input_dropped_under_overload_is_reported_once(session: RealtimeGaConversation) -> None:
    def send(event: Event) -> list[str]:
        frame = json.dumps(event).encode()
        return told(session.do(session.dialect.text_frame(frame, session.now, drops_input=True)))

    assert send(append(0.2)) == ["error:server_overloaded"]
    assert send(append(0.2)) == []
    assert send(message()) == ["error:server_overloaded"]
    assert session.client(append(0.2)) == []
    assert session.closed is None


def clear_of(size: int) -> bytes:
    """Return an event of `size` bytes."""
    event = b'{"type":"input_audio_buffer.clear","event_id":"%b"}'
    return event % (b"x" * (size - len(event) + 2))


@pytest.mark.parametrize(("more", "is_closed"), [(0, False), (1, True)])
def test_early_events_are_held_up_to_a_mebibyte(more: int, is_closed: bool) -> None:
    session = RealtimeGaConversation()
    half = MOST_EARLY_BYTES // 2
    session.client(clear_of(half))
    assert session.dialect.held_bytes == half
    session.client(clear_of(half + more))
    assert session.close_code == (1013 if is_closed else None)
    assert session.dialect.held_bytes == (0 if is_closed else 2 * half)
