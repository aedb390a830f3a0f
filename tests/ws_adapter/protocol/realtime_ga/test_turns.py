"""Turns that the server hears the end of, and what happens when the user speaks over the model."""

from typing import Any

import pytest

from tests.support.schemas import Event
from tests.ws_adapter.support.realtime_ga_conversation import (
    AUDIO,
    CLOSING,
    COMMIT,
    COMMITTED,
    RealtimeGaConversation,
    append,
    begun,
    granted,
    message,
    told,
    update,
)
from ws_adapter.protocol.core.signals import UnitEnd
from ws_adapter.protocol.core.turn import Speech

SPEAKS, SILENT = 0.9, 0.02


HEARD = ["input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"]


def hearing(**vad: Any) -> RealtimeGaConversation:
    """A session that hears when the user speaks."""
    session = granted()
    session.client(update(audio={"input": {"turn_detection": {"type": "server_vad", **vad}}}))
    return session


@pytest.fixture
def session() -> RealtimeGaConversation:
    return hearing()


def speak(session: RealtimeGaConversation, seconds: float = 1.0) -> list[Event]:
    """The user says something and is silent then; the worker is asked if it is to be."""
    events = session.detect(SPEAKS, seconds) + session.detect(SILENT, 0.8)
    session.ready()
    return events


def test_a_turn_is_heard_committed_and_answered(session: RealtimeGaConversation) -> None:
    session.detect(SILENT, 2.0)
    events = speak(session)
    assert told(events) == [*HEARD, *COMMITTED, "response.created"]
    started, stopped, committed, added = events[:4]
    assert started["item_id"] == stopped["item_id"] == committed["item_id"] == added["item"]["id"]
    assert abs(started["audio_start_ms"] - 1700) <= 64
    assert abs(stopped["audio_end_ms"] - 3500) <= 64
    (clip,) = session.turn.messages[-1].parts
    assert isinstance(clip, Speech)
    heard_ms = len(clip.data) // 64
    assert abs(heard_ms - (stopped["audio_end_ms"] - started["audio_start_ms"])) <= 1


def test_padding_and_silence_are_those_of_the_settings() -> None:
    session = hearing(prefix_padding_ms=1000, silence_duration_ms=200)
    session.detect(SILENT, 2.0)
    started, stopped = session.detect(SPEAKS, 1.0) + session.detect(SILENT, 0.3)[:1]
    assert abs(started["audio_start_ms"] - 1000) <= 64
    assert abs(stopped["audio_end_ms"] - 3200) <= 64


def test_the_threshold_is_that_of_the_settings() -> None:
    session = hearing(threshold=0.95)
    assert speak(session) == []


def test_without_create_response_a_turn_is_only_committed() -> None:
    session = hearing(create_response=False)
    events = speak(session)
    assert told(events)[2:] == COMMITTED
    assert session.runs == []


def test_silence_is_not_held(session: RealtimeGaConversation) -> None:
    for _ in range(20):
        session.detect(SILENT, 10.0)
    assert session.dialect.held_bytes < 2 * 64_000


def test_barge_in_cancels_answer_after_speech_started(session: RealtimeGaConversation) -> None:
    speak(session)
    session.say("Seven apples")
    events = session.detect(SPEAKS, 0.3)
    assert told(events) == ["input_audio_buffer.speech_started", *CLOSING]
    response = events[-1]["response"]
    assert response["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert response["output"][0]["status"] == "incomplete"
    assert session.cancelled == [session.runs[-1].unit]
    assert session.say("more") == session.finish(UnitEnd.CANCELLED) == []


def test_no_audio_waits_behind_an_interruption(session: RealtimeGaConversation) -> None:
    speak(session)
    session.say("One")
    session.do(session.dialect.congested(True, session.now))
    session.say("Two")
    events = session.detect(SPEAKS, 0.3)
    session.do(session.dialect.congested(False, session.now))
    assert AUDIO not in told(events + session.wait(1.0))
    assert session.dialect.held_bytes < 2 * 64_000


def test_an_answer_that_may_not_be_interrupted_goes_on_and_the_turn_is_answered_after_it() -> None:
    session = hearing(interrupt_response=False)
    speak(session)
    session.say("Seven")
    assert told(speak(session)) == [*HEARD, *COMMITTED]
    assert session.say(" apples")
    assert told(session.finish())[-2:] == ["response.done", "response.created"]
    assert len(session.turn.messages) == 4


def test_a_client_may_commit_what_the_server_listens_to(session: RealtimeGaConversation) -> None:
    (started,) = session.detect(SPEAKS, 1.0)
    events = session.client(COMMIT)
    assert told(events) == COMMITTED
    assert events[0]["item_id"] == started["item_id"]
    assert session.detect(SILENT, 2.0) == []


def test_cleared_speech_makes_no_turn(session: RealtimeGaConversation) -> None:
    session.detect(SPEAKS, 1.0)
    assert told(session.client({"type": "input_audio_buffer.clear"})) == ["input_audio_buffer.cleared"]
    assert session.detect(SILENT, 2.0) == []


def test_speech_without_a_pause_is_cut_into_turns() -> None:
    session = hearing(create_response=False)
    events = [event for _ in range(20) for event in session.detect(SPEAKS, 5.0)]
    assert told(events) == [*HEARD, *COMMITTED, HEARD[0]]
    assert events[0]["item_id"] != events[-1]["item_id"]


def test_a_session_that_stops_listening_hears_no_turns(session: RealtimeGaConversation) -> None:
    session.detect(SPEAKS, 0.05)
    session.client(update(audio={"input": {"turn_detection": None}}))
    session.client(append(2.0))
    assert session.do(session.dialect.detected([SPEAKS] * 20, session.now)) == []


def test_a_session_that_begins_to_listen_counts_from_its_first_audio() -> None:
    session = begun()
    session.client(append(2.0))
    session.client({"type": "input_audio_buffer.clear"})
    detection = {"type": "server_vad", "prefix_padding_ms": 0}
    session.client(update(audio={"input": {"turn_detection": detection}}))
    session.detect(SILENT, 1.0)
    (started,) = session.detect(SPEAKS, 0.5)
    assert abs(started["audio_start_ms"] - 3000) <= 64


def test_idle_timeout_prompts_silent_user_once() -> None:
    session = hearing(idle_timeout_ms=5000)
    speak(session)
    session.say("Seven", 2.0)
    session.finish()
    session.detect(SILENT, 1.0)
    assert session.wait(6.9) == []
    events = session.wait(0.2)
    assert told(events) == ["input_audio_buffer.timeout_triggered", *COMMITTED, "response.created"]
    assert events[0]["item_id"] == events[1]["item_id"]

    session.say("Are you there?")
    session.finish()
    assert session.wait(60.0) == []


def test_speech_after_answer_cancels_nothing_and_disarms_idle_timeout() -> None:
    session = hearing(idle_timeout_ms=5000)
    speak(session)
    session.say()
    session.finish()
    assert told(session.detect(SPEAKS, 0.5)) == [HEARD[0]]
    assert session.wait(20.0) == []


def test_turn_without_room_is_an_error_where_nothing_is_dropped(session: RealtimeGaConversation) -> None:
    session.client(update(truncation="disabled"))
    for _ in range(256):
        session.client(message("x"))
        session.wait(0.1)
    events = speak(session)
    assert told(events)[-1] == "error:conversation_full"
    assert "256 items" in events[-1]["error"]["message"]
    assert session.runs == []
