"""Turns that the model takes by itself (`semantic_vad`): responses are its spoken turns."""

import pytest

from antiphon.contract import Reason
from tests.support.schemas import Event
from tests.ws_adapter.support import tokens as counted
from tests.ws_adapter.support.conversation import SPEECH, ready_signal
from tests.ws_adapter.support.realtime_ga_conversation import (
    CLOSING,
    COMMITTED,
    OPENING,
    SEMANTIC,
    SPOKEN,
    NativeConversation,
    append,
    granted,
    heard,
    told,
    truncate,
    update,
)
from ws_adapter.protocol.core.actions import Rewind
from ws_adapter.protocol.core.config import Mode, SessionSetup
from ws_adapter.protocol.core.signals import Finalized, Piece, UnitDone, UnitEnd

CHUNK, TURN = UnitEnd.CHUNK, UnitEnd.TURN
SPEAKS = 0.9


@pytest.fixture
def session() -> NativeConversation:
    return NativeConversation()


def test_first_audio_opens_a_full_duplex_session() -> None:
    session = granted()
    (updated,) = session.client(update(instructions="Be brief.", **SEMANTIC))

    assert updated["session"]["audio"]["input"]["turn_detection"] == {
        "type": "semantic_vad",
        "eagerness": "auto",
        "create_response": True,
        "interrupt_response": True,
    }
    assert not session.configured
    session.client(append(0.5))
    (opened,) = session.configured
    assert isinstance(opened.setup, SessionSetup)
    assert (opened.setup.mode, opened.setup.system_prompt) == (Mode.AUDIO, "Be brief.")


def test_session_that_was_opened_for_chat_is_opened_anew() -> None:
    session = granted()
    session.wait(16.0)
    session.worker(ready_signal())
    session.client(update(**SEMANTIC))
    session.client(append(0.5))
    session.grant()
    assert [type(opened.setup).__name__ for opened in session.configured] == ["ChatSetup", "SessionSetup"]


def test_spoken_turn_of_the_model_is_a_response(session: NativeConversation) -> None:
    session.second()
    first = session.second(CHUNK, "Seven")
    rest = session.second(TURN, " apples.")
    assert [kind for kind in told(first) if "buffer" not in kind] == ["response.created", *OPENING, *SPOKEN]
    assert [kind for kind in told(rest) if "buffer" not in kind] == [*SPOKEN, *CLOSING]
    done = rest[-1]["response"]
    assert done["status"] == "completed"
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "Seven apples."}]
    assert done["usage"]["output_token_details"]["text_tokens"] == 6
    assert done["usage"]["input_token_details"]["audio_tokens"] == 20
    assert len(heard(first + rest)) == 2 * len(SPEECH) // 2
    assert len({event["response_id"] for event in first + rest if "response_id" in event}) == 1


def test_listening_model_says_nothing_and_asks_for_nothing(session: NativeConversation) -> None:
    events = [event for _ in range(5) for event in session.second()]
    assert events == []
    assert [unit.force_listen for unit in session.units] == [False] * 5


def test_user_audio_reaches_model_throughout_and_speech_is_reported(session: NativeConversation) -> None:
    events = session.second(score=SPEAKS) + session.second() + session.second()
    speech = ["input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"]
    assert told(events) == [*speech, *COMMITTED]
    assert len({event.get("item_id") or event["item"]["id"] for event in events}) == 1
    assert len(session.units) == 3
    assert not session.runs


def test_speech_over_an_answer_ends_it_and_the_model_listens(session: NativeConversation) -> None:
    session.second()
    session.second(CHUNK, "Once upon a time")
    session.client(append(1.0))
    events = session.hear(SPEAKS, 0.5)
    assert told(events) == ["input_audio_buffer.speech_started", *CLOSING]
    done = events[-1]["response"]
    assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "turn_detected")
    assert session.cancelled == [3]
    assert not told(session.answer_unit(CHUNK, " there was"))
    session.hear(SPEAKS, 0.6)
    assert session.units[-1].force_listen


def test_speech_with_interrupt_response_off_is_reported_without_barge_in() -> None:
    detection = {"type": "semantic_vad", "interrupt_response": False}
    session = NativeConversation(audio={"input": {"turn_detection": detection}})
    session.second(CHUNK, "Once upon a time")
    events = session.hear(SPEAKS, 0.5)
    assert told(events) == ["input_audio_buffer.speech_started"]
    assert not session.cancelled


def cut(session: NativeConversation, ms: int) -> list[Event]:
    item = next(event["item"] for event in session.sent if event["type"] == "response.output_item.added")
    return session.client(truncate(item["id"], ms))


@pytest.mark.parametrize(
    ("ms", "unit", "samples"), [(0, 2, 0), (999, 2, 23_976), (1000, 3, 0), (1500, 3, 12_000), (2000, 3, None)]
)
def test_truncation_rewinds_model_to_played_audio(ms: int, unit: int, samples: int | None) -> None:
    session = NativeConversation()
    session.second()
    session.second(CHUNK, "Once upon a time")
    session.second(TURN, " there was a fox.")
    assert told(cut(session, ms)) == ["conversation.item.truncated"]
    assert session.rewinds == [Rewind(unit) if samples is None else Rewind(unit, samples)]


def test_truncation_of_unfinalized_unit_delays_rewind(session: NativeConversation) -> None:
    session.hear(seconds=1.1)
    counts = counted.tokens(input_audio=10, output_text=3)
    session.worker(Piece(1, "Once upon a time", SPEECH), UnitDone(1, CHUNK, 119, tokens=counts))
    assert told(cut(session, 500)) == ["conversation.item.truncated"]
    assert not session.rewinds
    session.worker(Finalized(1))
    assert session.rewinds == [Rewind(1, 12_000)]


def test_truncation_beyond_the_end_is_refused_and_nothing_is_taken_back(session: NativeConversation) -> None:
    session.second(TURN, "Once upon a time")
    assert told(cut(session, 1500)) == ["error:invalid_value"]
    assert not session.rewinds


def test_worker_that_is_lost_or_full_of_nothing_ends_the_session() -> None:
    full, lost = NativeConversation(), NativeConversation()
    full.second(UnitEnd.CONTEXT_FULL)
    assert full.closed is not None
    lost.second()
    (error,) = lost.fail(Reason.WORKER_LOST)
    assert error["error"]["type"] == "server_error"
    assert lost.closed is not None


def test_failed_unit_is_reported_and_conversation_continues(session: NativeConversation) -> None:
    events = session.second(UnitEnd.FAILED, failure=Reason.INFERENCE_FAILED)
    assert told(events)[0].startswith("error:")
    assert told(session.second(TURN, "Seven"))[-1] == "response.done"


def test_long_conversation_forgets_its_oldest_items_and_goes_on(session: NativeConversation) -> None:
    session._is_observed = False
    for i in range(300):
        assert told(session.second(TURN, f"Answer {i}."))[-1] == "response.done"
