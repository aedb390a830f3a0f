"""Tests of clients that greet, type, replay, change or mute beside the model's own turns."""

from typing import Any

import numpy as np
import pytest

from antiphon.contract import Reason
from tests.support.schemas import Event
from tests.ws_adapter.support.conversation import ready_signal
from tests.ws_adapter.support.pools import catalogue as catalogue_of
from tests.ws_adapter.support.realtime_ga_conversation import (
    CANCEL,
    CLOSING,
    CREATE,
    SEMANTIC,
    VAD,
    WEATHER,
    NativeConversation,
    RealtimeGaConversation,
    append,
    begun,
    granted,
    message,
    told,
    update,
)
from ws_adapter.protocol.core.config import ChatSetup, Mode, SessionSetup
from ws_adapter.protocol.core.signals import GoingAway, TextPurpose, UnitEnd
from ws_adapter.protocol.core.turn import Message, Speech
from ws_adapter.protocol.realtime_ga.worker_slot import WorkerSlotPhase

CHUNK, TURN = UnitEnd.CHUNK, UnitEnd.TURN
SPEAKS = 0.9


@pytest.fixture
def session() -> NativeConversation:
    return NativeConversation()


def prompts(session: RealtimeGaConversation) -> list[str]:
    """The prompts of all full-duplex sessions that workers were told."""
    setups = [opened.setup for opened in session.configured]
    return [setup.system_prompt for setup in setups if isinstance(setup, SessionSetup)]


def detection(events: list[Event]) -> Any:
    return events[-1]["session"]["audio"]["input"]["turn_detection"]


def answer_typed(session: NativeConversation, text: str = "Hi.") -> list[Event]:
    """The worker answers the response that was asked for."""
    before = len(session.sent)
    session.settle()
    session.say(text)
    session.finish()
    return session.sent[before:]


def audio_of(session: NativeConversation, begin: int = 0) -> float:
    """Seconds of sound, other than silence, in the units that were run."""
    data = b"".join(unit.audio for unit in session.units[begin:])
    return float(np.count_nonzero(np.abs(np.frombuffer(data, "<f4")) > 0.05)) / 16_000


def test_audio_before_the_update_moves_to_the_model() -> None:
    session = NativeConversation.__new__(NativeConversation)
    RealtimeGaConversation.__init__(session)
    session._is_ready = True
    session.grant()
    session.detect(SPEAKS, 1.5)

    updated = session.client(update(**SEMANTIC))
    session.settle()
    session.hear(SPEAKS, 0.6)

    assert detection(updated)["type"] == "semantic_vad"
    assert audio_of(session) == pytest.approx(2.0, abs=0.05)
    stopped = told(session.hear(0.0, 1.0))
    assert stopped[0] == "input_audio_buffer.speech_stopped"
    assert told(session.sent).count("input_audio_buffer.speech_started") == 1
    assert not session.runs


def test_update_after_a_spoken_turn_is_accepted_and_turns_stay_detected() -> None:
    """The model could not be told what was said, since nobody has written it down."""
    session = begun()
    session.commit()
    updated = session.client(update(instructions="Be brief.", **SEMANTIC))
    assert updated[0]["session"]["instructions"] == "Be brief."
    assert detection(updated) == VAD


@pytest.mark.parametrize(
    ("catalogue", "session", "given", "told_of"),
    [
        ({"modes": frozenset({Mode.CHAT})}, {}, {}, True),
        ({"calls_tools": True}, {"tools": [WEATHER]}, {}, True),
        ({}, {}, {"create_response": False, "interrupt_response": False}, False),
    ],
    ids=["chats", "tools", "no response"],
)
def test_model_that_cannot_take_turns_so_has_them_detected(
    catalogue: Any, session: Any, given: Any, told_of: bool
) -> None:
    talk = granted(catalogue=catalogue_of(**catalogue))
    vad = {"type": "semantic_vad", **given}
    echo = detection(talk.client(update(audio={"input": {"turn_detection": vad}}, **session)))
    assert echo["type"] == "server_vad"
    assert (echo["create_response"], echo["interrupt_response"]) == (told_of, told_of)


def test_update_to_server_vad_returns_model_to_detected_turns(session: NativeConversation) -> None:
    session.second(CHUNK, "Once upon a time")
    events = session.client(update(audio={"input": {"turn_detection": {"type": "server_vad"}}}))
    assert told(events)[-2:] == ["response.done", "session.updated"]
    assert detection(events)["type"] == "server_vad"
    session.client(message("Hello"))
    session.client(CREATE)
    assert told(answer_typed(session))[-1] == "response.done"


def test_greeting_before_any_audio_is_a_turn_and_then_the_model_hears() -> None:
    session = NativeConversation(instructions="Be brief.")
    created = session.client({**CREATE, "response": {"instructions": "Greet the user."}})
    greeting = answer_typed(session, "Welcome!")
    assert told(created) == ["response.created"]
    assert told(greeting)[-1] == "response.done"
    assert session.turn.messages == (Message("system", ("Greet the user.",)),)
    assert told(session.second(TURN, "Seven"))[-1] == "response.done"
    assert prompts(session) == ["Be brief.\n\nThe conversation so far:\nassistant: Welcome!"]


def test_replayed_history_is_in_prompt_before_first_unit(session: NativeConversation) -> None:
    session.client(message("My name is Ada."))
    session.client(message("Hello Ada.", "assistant"))
    session.second()
    (prompt,) = prompts(session)
    assert prompt.endswith("The conversation so far:\nuser: My name is Ada.\nassistant: Hello Ada.")
    assert not session.runs


def test_longest_history_is_cut_to_latest_lines(session: NativeConversation) -> None:
    for i in range(60):
        session.client(message(f"{i} " + "x" * 500))
    session.second()
    (prompt,) = prompts(session)
    assert len(prompt) < 9_000
    assert "user: 59 " in prompt
    assert "user: 0 " not in prompt


@pytest.mark.parametrize("reason", [Reason.INPUT_TOO_LONG, Reason.CONFIG_INVALID])
def test_history_too_long_for_model_is_retried_shorter(reason: Reason) -> None:
    session = NativeConversation(is_ready=False)
    for i in range(60):
        session.client(message(f"{i} " + "x" * 100))
    session.hear(seconds=1.2)
    assert session.fail(reason) == []
    session.grant()
    first, second = prompts(session)
    assert len(second) < len(first) / 2
    session.settle()
    session.answer_unit()
    assert session.closed is None


def test_settings_that_are_refused_without_a_history_end_the_session() -> None:
    session = NativeConversation(is_ready=False)
    session.hear(seconds=1.2)
    assert told(session.fail(Reason.CONFIG_INVALID)) == ["error:internal_error"]
    assert session.closed is not None


def test_typed_turn_leaves_the_mode_for_one_response_and_returns(session: NativeConversation) -> None:
    session.second(TURN, " Hello.")
    session.client(message("What is seven?"))

    assert told(session.client(CREATE)) == ["response.created"]
    assert told(session.client(CREATE)) == ["error:conversation_already_has_active_response"]
    session.hear(0.0, 0.5)
    assert told(answer_typed(session, "A number."))[-1] == "response.done"
    assert session.turn.messages[1:] == (
        Message("assistant", ("Hello.",)),
        Message("user", ("What is seven?",)),
    )
    assert told(session.second(TURN, "Yes."))[-1] == "response.done"

    assert [type(opened.setup) for opened in session.configured] == [SessionSetup, ChatSetup, SessionSetup]
    assert prompts(session)[-1].endswith("assistant: Hello.\nuser: What is seven?\nassistant: A number.")


def test_spoken_turn_of_the_model_is_cut_neither_by_a_typed_one_nor_by_a_response_beside() -> None:
    session = NativeConversation()
    session.second(CHUNK, "Once upon a time")
    assert told(session.client(CREATE)) == ["error:conversation_already_has_active_response"]
    assert told(session.client({**CREATE, "response": {"conversation": "none"}})) == ["response.created"]
    assert session.dialect._answers.slot.phase is WorkerSlotPhase.READY
    assert "response.done" in told(session.second(TURN, " there was a fox."))
    assert told(answer_typed(session))[-1] == "response.done"


def test_speech_over_a_typed_answer_ends_it_and_is_heard_from_its_first_word() -> None:
    session = NativeConversation()
    session.second()
    session.client(CREATE)
    session.settle()
    session.say("Once upon a time")
    begin = len(session.units)
    events = session.hear(SPEAKS, 1.0)
    session.finish(UnitEnd.CANCELLED)
    session.settle()
    session.hear(SPEAKS, 1.0)
    assert told(events)[0] == "input_audio_buffer.speech_started"
    assert events[-1]["response"]["status_details"]["reason"] == "turn_detected"
    assert audio_of(session, begin) >= 1.9


def test_turn_that_ends_during_a_typed_answer_is_answered_behind_it() -> None:
    vad = {"type": "semantic_vad", "interrupt_response": False}
    session = NativeConversation(audio={"input": {"turn_detection": vad}})
    session.second()
    session.client(CREATE)
    session.settle()
    session.hear(SPEAKS, 1.0)
    session.hear(0.0, 1.0)

    events = session.finish()

    assert told(events)[-1] == "response.created"
    assert told(answer_typed(session))[-1] == "response.done"
    assert any(isinstance(part, Speech) for said in session.turn.messages for part in said.parts)
    assert told(session.second(TURN, "Yes."))[-1] == "response.done"


def test_later_instructions_hold_from_the_users_next_words() -> None:
    session = NativeConversation(instructions="Be brief.")
    session.second()
    begin = len(session.units)
    assert told(session.client(update(instructions="Be brief.", **SEMANTIC))) == ["session.updated"]
    assert told(session.client(update(instructions="Sing."))) == ["session.updated"]
    assert prompts(session) == ["Be brief."]
    session.hear(SPEAKS, 1.0)
    session.settle()
    session.hear(SPEAKS, 1.0)
    assert prompts(session) == ["Be brief.", "Sing."]
    assert audio_of(session, begin) >= 1.9


def test_model_with_instructions_purpose_gets_new_instructions_in_next_unit() -> None:
    session = NativeConversation(is_ready=False)
    session.hear(seconds=1.2)
    session.ready(text_purposes=frozenset({TextPurpose.INSTRUCTIONS}))
    session.settle()
    session.answer_unit()
    session.client(update(instructions="Sing."))
    session.client(message("It rains.", "system"))
    session.second()
    assert [text.text for unit in session.units for text in unit.texts] == ["Sing.", "It rains."]
    assert len(session.configured) == 1


def test_answer_ends_at_max_output_tokens() -> None:
    session = NativeConversation(max_output_tokens=6)
    session.second(CHUNK, "Once upon")
    response = session.second(CHUNK, " a time")[-1]["response"]
    assert (response["status"], response["max_output_tokens"]) == ("incomplete", 6)
    assert response["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
    assert response["usage"]["output_token_details"]["text_tokens"] == 6
    (opened,) = session.configured
    assert isinstance(opened.setup, SessionSetup)
    assert opened.setup.duplex.max_new_speak_tokens_per_chunk == 6


def test_cancelled_turn_reports_tokens_of_its_units(session: NativeConversation) -> None:
    session.second(CHUNK, "Once")
    session.second(CHUNK, " upon")
    session.client(append(1.0))
    events = session.client(CANCEL)
    assert told(events) == CLOSING
    response = events[-1]["response"]
    assert response["status_details"]["reason"] == "client_cancelled"
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (20, 6)
    assert told(session.client(CANCEL)) == ["error:response_cancel_not_active"]


def test_muted_session_without_waiting_sessions_keeps_slot(session: NativeConversation) -> None:
    session.second()
    while session.unanswered:
        session.answer_unit()
    session.wait(3000.0)
    assert session.closed is None
    assert session.has_slot
    assert told(session.second(TURN, "Seven"))[-1] == "response.done"


def let_others_wait(session: NativeConversation) -> None:
    """For minutes, while the model listens."""
    for _ in range(40):
        session.wait(10.0, others_wait=True)
        while session.unanswered:
            session.answer_unit()


def test_muted_session_gives_its_slot_to_others_and_takes_one_when_it_is_unmuted() -> None:
    session = NativeConversation()
    session.second(TURN, "Seven.")
    let_others_wait(session)
    assert not session.has_slot
    assert session.closed is None
    assert told(session.second(TURN, "Eight."))[-1] == "response.done"
    assert prompts(session)[-1].endswith("assistant: Seven.")


def test_speech_that_was_not_answered_does_not_keep_the_slot(session: NativeConversation) -> None:
    session.hear(SPEAKS, 1.0)
    session.hear(0.0, 2.0)
    let_others_wait(session)
    assert not session.has_slot
    assert session.closed is None


def test_upload_faster_than_real_time_loses_nothing(session: NativeConversation) -> None:
    for _ in range(60):
        session.hear(seconds=1.0)
    session.now += 5.0
    while session.unanswered:
        session.answer_unit()
        session.now += 1.0
    assert audio_of(session) == pytest.approx(60.0, abs=1.0)
    assert "error" not in told(session.sent)


def test_audio_that_waits_for_the_model_is_bounded_and_said_once() -> None:
    session = NativeConversation(is_ready=False)
    answers = [name for _ in range(20) for name in told(session.hear(seconds=10.0))]
    assert answers == ["error:input_audio_buffer_full"]
    assert session.dialect.held_bytes < 16 * 2**20


def test_full_context_cuts_answer_and_reopens_with_history(session: NativeConversation) -> None:
    session.second(TURN, "Seven.")
    session.second(UnitEnd.CONTEXT_FULL)
    assert session.closed is None
    assert told(session.second(TURN, "Eight."))[-1] == "response.done"
    assert prompts(session)[-1].endswith("assistant: Seven.")

    session.second(CHUNK, "Once upon a time")
    events = session.second(UnitEnd.CONTEXT_FULL, " there was")
    assert told(events)[-1] == "response.done"
    assert events[-1]["response"]["status"] == "incomplete"
    assert told(session.second(TURN, "Nine."))[-1] == "response.done"


def test_full_context_with_truncation_disabled_ends_session() -> None:
    session = NativeConversation(truncation="disabled")
    session.second(TURN, "Seven.")
    session.second(UnitEnd.CONTEXT_FULL)
    assert session.closed is not None


def test_worker_that_goes_away_is_replaced(session: NativeConversation) -> None:
    session.second(TURN, "Seven.")
    session.worker(GoingAway(30.0))
    assert told(session.second(TURN, "Eight."))[-1] == "response.done"
    assert len(prompts(session)) == 2


def test_conversation_without_worker_is_closed_as_overloaded() -> None:
    session = NativeConversation(is_ready=False)
    session.client(CREATE)
    session.ready()
    session.finish()
    session.hear()
    assert session.dialect._answers.slot.phase is WorkerSlotPhase.WANTED
    assert told(session.wait(10.0)) == ["error:server_overloaded"]
    assert session.closed is not None


def test_ready_signal_of_another_session_begins_nothing() -> None:
    session = NativeConversation(is_ready=False)
    session.hear()
    session.client(CREATE)
    session.worker(ready_signal())
    assert not session.units
