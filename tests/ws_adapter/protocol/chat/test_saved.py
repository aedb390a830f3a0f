"""Chats that another adapter goes on with."""

import base64
from typing import Final

import pytest

from tests.ws_adapter.support.chat_conversation import (
    SPOKEN,
    USER,
    ChatJar,
    RealtimeChatJar,
    append,
    f32,
    user,
)
from tests.ws_adapter.support.saving import assert_torn_states_are_refused, save
from ws_adapter.protocol.core.signals import CallDelta, Piece

CLIP: Final = user({"type": "audio", "data": f32(0.5)}, {"type": "text", "text": "What is it?"})


def test_moved_answer_continues_after_text_already_sent() -> None:
    chat = ChatJar()
    chat.ask(streaming=True)
    chat.prefilled()
    told = chat.say("Sev")
    chat.move()
    told += chat.say("en")
    told += chat.done()
    assert [event.get("text_delta") for event in told[:-1]] == ["Sev", "en"]
    assert (told[-1]["type"], told[-1]["text"]) == ("done", "Seven")
    assert told[-1]["input_tokens"] == 27
    assert chat.closed is not None


def test_answer_that_is_sent_at_once_keeps_its_sound_and_its_calls() -> None:
    request, session = ChatJar(), RealtimeChatJar()
    request.ask(streaming=False)
    session.activate()
    session.client(append(USER, streaming=False))
    for chat in (request, session):
        chat.prefilled()
        chat.say("Sev", SPOKEN)
        chat.worker(Piece(1, "", b"", call=CallDelta(0, "call_1", "weather", "{")))
        chat.move()
        chat.worker(Piece(1, "", b"", call=CallDelta(0, arguments="}", complete=True)))
        chat.say("en", SPOKEN)
        done = chat.done()[-1]
        assert done["text"] == "Seven"
        assert done["tool_calls"][0]["function"] == {"name": "weather", "arguments": "{}"}
        sound = done.get("audio_data") or done["audio"]
        assert sound == base64.b64encode(2 * SPOKEN).decode()
        assert [event["type"] for event in chat.sent][-1] == done["type"]


def test_finished_answer_without_journal_closes_normally_after_move() -> None:
    chat = ChatJar()
    chat.ask(streaming=True)
    chat.prefilled()
    chat.done()
    chat.closed = None
    assert chat.move(has_journal=False) == []
    assert chat.close_code == 1000


def test_answer_that_is_in_no_journal_fails_and_a_request_that_was_not_read_is_in_no_state() -> None:
    chat = ChatJar()
    chat.ask(streaming=True)
    with pytest.raises(AssertionError):
        save(chat.machine, chat.now)
    chat.prefilled()
    chat.say("Sev")
    (failed,) = chat.move(has_journal=False)
    assert failed["type"] == "error"
    assert chat.closed is not None


def test_turns_that_wait_are_asked_as_before() -> None:
    alone, moved = RealtimeChatJar(), RealtimeChatJar()
    asked = []
    for chat in (alone, moved):
        chat.activate({"system_prompt": "Be brief."})
        chat.client(append(USER))
        chat.client(append(CLIP))
        if chat is moved:
            chat.move()
        chat.answer()
        if chat is moved:
            chat.move(has_journal=False)
            assert chat.slots[-2:] == ["take", "take"]
        chat.next_slot()
        asked.append((chat.turn, [event for event in chat.answer() if "metrics" not in event]))
        chat.client(append(USER))
        chat.next_slot()
        assert chat.answer()[-1]["type"] == "response.done"

    assert asked[0] == asked[1]


def test_turn_without_journal_is_retried_unless_output_was_sent() -> None:
    chat = RealtimeChatJar()
    chat.activate()
    chat.client(append(CLIP, streaming=True))
    asked = chat.turn
    assert chat.move(has_journal=False) == []
    chat.next_slot()
    assert chat.turn == asked
    chat.prefilled()
    chat.say("Sev")
    told = chat.move(has_journal=False)
    assert [event["type"] for event in told] == ["error", "session.closed"]
    assert chat.closed is not None


def test_state_that_is_torn_is_refused() -> None:
    chat = RealtimeChatJar()
    chat.activate()
    chat.client(append(CLIP))
    state, blobs = save(chat.machine, chat.now)
    assert_torn_states_are_refused(chat.new_dialect, state, blobs, chat.now)
