"""Responses of Realtime: the ladder of their events, their ends, and what the model is told."""

import base64
from typing import Any

import pytest

from antiphon.contract import Reason
from tests.support.schemas import Event
from tests.ws_adapter.support import tokens as counted
from tests.ws_adapter.support.realtime_ga_conversation import (
    CANCEL,
    CLOSING,
    COMMIT,
    COMMITTED,
    CREATE,
    DONE,
    OPENING,
    SPOKEN,
    WEATHER,
    RealtimeGaConversation,
    append,
    begun,
    heard,
    message,
    output,
    sound,
    told,
)
from ws_adapter.protocol.core.signals import Finish, Piece, UnitEnd
from ws_adapter.protocol.core.turn import Call, Message, Speech
from ws_adapter.protocol.live.sound import Format

BESIDE: Event = {"type": "response.create", "response": {"conversation": "none"}}

RESPONSE_KEYS = set(
    "id object status status_details output conversation_id output_modalities max_output_tokens audio usage "
    "metadata".split()
)


def talking(**session: Any) -> RealtimeGaConversation:
    """A session whose client commits, and has said something."""
    conversation = begun(**session)
    conversation.client(message())
    return conversation


@pytest.fixture
def session() -> RealtimeGaConversation:
    return talking()


@pytest.fixture
def asked(session: RealtimeGaConversation) -> RealtimeGaConversation:
    """A response is at the worker."""
    session.respond()
    return session


def done(events: list[Event]) -> Event:
    (event,) = [event for event in events if event["type"] == "response.done"]
    response: Event = event["response"]
    return response


def test_a_manual_turn_becomes_an_item_and_no_response() -> None:
    session = begun()
    assert session.client(append(1.0)) == []
    committed, added, item_done = session.client(COMMIT)
    assert told([committed, added, item_done]) == COMMITTED
    assert committed["previous_item_id"] is None
    assert committed["item_id"] == added["item"]["id"] == item_done["item"]["id"]
    assert item_done["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    assert session.runs == []


def test_a_spoken_response_climbs_the_ladder(session: RealtimeGaConversation) -> None:
    events = session.respond(metadata={"client_event_id": "1"})
    events += session.say("Seven") + session.say(" apples.")
    events += session.finish(tokens=counted.tokens(5, 10, 0, 4, 3, 25))

    assert told(events) == ["response.created", *OPENING, *SPOKEN, *SPOKEN, *CLOSING]
    created, final = events[0]["response"], done(events)
    assert set(created) == set(final) == RESPONSE_KEYS
    assert (created["status"], created["usage"], created["output"]) == ("in_progress", None, [])
    assert created["metadata"] == final["metadata"] == {"client_event_id": "1"}
    assert (final["status"], final["status_details"]) == ("completed", None)
    assert final["usage"] == {
        "total_tokens": 43,
        "input_tokens": 15,
        "output_tokens": 28,
        "input_token_details": {"text_tokens": 5, "audio_tokens": 10, "image_tokens": 0, "cached_tokens": 4},
        "output_token_details": {"text_tokens": 3, "audio_tokens": 25},
    }
    (item,) = final["output"]
    assert item["content"] == [{"type": "output_audio", "transcript": "Seven apples."}]
    assert item["status"] == "completed"
    assert events[1]["item"]["content"] == []
    assert events[2]["previous_item_id"] == session.sent[3]["item"]["id"]
    assert len(heard(events)) == 2 * 48_000
    assert {event["item_id"] for event in events if "item_id" in event} == {item["id"]}


def test_a_written_response_climbs_the_ladder() -> None:
    session = talking(output_modalities=["text"])
    events = session.respond()
    events += session.worker(Piece(1, "Seven", b""), Piece(1, " apples.", b"")) + session.finish()
    written = ["response.output_text.delta"] * 2 + ["response.output_text.done"]
    assert told(events) == ["response.created", *OPENING, *written, "response.content_part.done", *DONE]
    assert done(events)["output"][0]["content"] == [{"type": "output_text", "text": "Seven apples."}]
    assert not session.turn.speaks


def test_a_call_of_a_tool_climbs_the_ladder() -> None:
    session = talking(tools=[WEATHER])
    events = session.respond() + session.call(arguments='{"city":"Rome"}') + session.finish()
    called = [f"response.function_call_arguments.{name}" for name in ("delta", "delta", "done")]
    assert told(events) == ["response.created", *OPENING[:2], *called, *DONE]
    begun = {"status": "in_progress", "name": "weather", "call_id": "call_1", "arguments": ""}
    assert begun.items() <= events[1]["item"].items()
    assert (events[5]["arguments"], events[5]["name"]) == ('{"city":"Rome"}', "weather")
    assert events[7]["item"]["status"] == "completed"
    assert done(events)["output"] == [events[7]["item"]]
    assert [tool.name for tool in session.turn.tools] == ["weather"]


def test_words_and_a_call_share_a_response() -> None:
    session = talking(tools=[WEATHER])
    session.respond()
    events = session.say("Let me see.") + session.call() + session.finish()
    message_item, call = done(events)["output"]
    assert (message_item["type"], call["type"]) == ("message", "function_call")
    assert [e["output_index"] for e in events if e["type"] == "response.output_item.done"] == [0, 1]


def test_tool_output_before_response_done_is_in_next_turn() -> None:
    session = talking(tools=[WEATHER])
    session.respond()
    session.say("Let me see.")
    session.call()
    answers = session.client(output("call_1"))
    session.finish()
    session.respond()
    assert told(answers) == ["conversation.item.added", "conversation.item.done"]
    assert session.turn.messages[1:] == (
        Message("user", ("Hello",)),
        Message("assistant", ("Let me see.",), (Call("call_1", "weather", "{}"),)),
        Message("tool", ("sun",), call_id="call_1"),
    )


def test_cancelled_tool_call_is_absent_from_next_turn() -> None:
    session = talking(tools=[WEATHER])
    session.respond()
    session.call(arguments='{"c')
    session.client(CANCEL)
    session.finish(UnitEnd.CANCELLED)
    session.respond()
    assert [message.role for message in session.turn.messages] == ["system", "user", "assistant"]


def test_turn_holds_whole_conversation() -> None:
    session = begun(instructions="Be brief.")
    session.client(message("Mind the gap", "system"))
    session.commit()
    session.answer("Seven")
    session.client(message("And now?"))
    session.respond()

    *before, said, answered, asked = session.turn.messages
    assert before == [Message("system", ("Be brief.",)), Message("system", ("Mind the gap",))]
    (clip,) = said.parts
    assert isinstance(clip, Speech)
    assert abs(len(clip.data) - 64_000) <= 4 * 40
    assert (answered, asked) == (Message("assistant", ("Seven",)), Message("user", ("And now?",)))
    assert session.turn.speaks
    assert session.turn.generation.max_new_tokens == 4096


def test_a_response_may_differ_from_its_session() -> None:
    session = talking(instructions="Be brief.", tools=[WEATHER])
    session.respond(
        instructions="Be long.", output_modalities=["text"], max_output_tokens=7, tools=[], tool_choice="none"
    )
    assert session.turn.messages[0] == Message("system", ("Be long.",))
    assert session.turn.generation.max_new_tokens == 7
    assert session.turn.tools == ()
    assert not session.turn.speaks


def test_an_empty_conversation_can_be_answered() -> None:
    session = begun(instructions="")
    events = session.answer("Hello!")
    assert told(events)[-1] == "response.done"
    assert session.turn.messages == (Message("system", ("You are a helpful assistant.",)),)


def too_long(session: RealtimeGaConversation) -> list[Event]:
    return session.finish(UnitEnd.FAILED, failure=Reason.INPUT_TOO_LONG)


def texts(session: RealtimeGaConversation) -> list[Any]:
    """Return the texts of the prompt after the instructions."""
    return [said.parts[0] for said in session.turn.messages[1:]]


def test_turn_too_long_for_model_is_retried_without_older_half() -> None:
    session = begun()
    session.client(message("Mind the gap", "system"))
    for text in "12345":
        session.client(message(text))
    session.respond()

    assert too_long(session) == []
    assert texts(session) == ["Mind the gap", "4", "5"]
    assert too_long(session) == []
    assert texts(session) == ["Mind the gap", "5"]
    session.say()
    assert done(session.finish())["status"] == "completed"
    session.respond()
    assert texts(session) == ["Mind the gap", "5", "Seven"]


def test_a_single_item_that_is_too_long_fails_the_response(asked: RealtimeGaConversation) -> None:
    events = too_long(asked)
    assert told(events) == ["error:invalid_value", "response.done"]
    assert done(events)["status"] == "failed"
    asked.respond()
    assert asked.turn.messages[-1] == Message("user", ("Hello",))


@pytest.mark.parametrize(
    ("truncation", "left"),
    [
        ("disabled", None),
        ({"type": "retention_ratio", "retention_ratio": 0.8}, ["2", "3", "4", "5"]),
        ({"type": "retention_ratio", "retention_ratio": 1.0}, ["2", "3", "4", "5"]),
    ],
)
def test_truncation_setting_decides_dropped_history(truncation: Any, left: list[str] | None) -> None:
    session = begun(truncation=truncation)
    for text in "12345":
        session.client(message(text))
    session.respond()
    events = too_long(session)
    if left is None:
        assert done(events)["status"] == "failed"
    else:
        assert texts(session) == left


def test_a_response_outside_the_conversation_joins_nothing(session: RealtimeGaConversation) -> None:
    reference = {"type": "item_reference", "id": session.sent[-1]["item"]["id"]}
    events = session.respond(
        conversation="none", output_modalities=["text"], input=[reference, message("Sum up.")["item"]]
    )
    events += session.say("So.") + session.finish()
    assert not [event for event in events if event["type"].startswith("conversation.")]
    assert done(events)["conversation_id"] is None
    assert session.turn.messages[1:] == (Message("user", ("Hello",)), Message("user", ("Sum up.",)))
    for given, messages in (([], 1), (None, 2)):
        session.answer(conversation="none", input=given)
        assert len(session.turn.messages) == messages
    session.respond()
    assert len(session.turn.messages) == 2


def test_an_unknown_reference_or_call_is_refused(session: RealtimeGaConversation) -> None:
    reference = {"type": "item_reference", "id": "item_9"}
    (of_item,) = session.client({"type": "response.create", "response": {"input": [reference]}})
    (of_call,) = session.client(output("call_9"))
    assert of_item["error"]["param"] == "response.input[0].id"
    assert (of_call["error"]["code"], of_call["error"]["param"]) == ("invalid_value", "item.call_id")
    assert session.runs == []


def test_a_response_outside_the_conversation_does_not_block_the_one_in_it() -> None:
    session = talking()
    session.respond(conversation="none")
    created = session.client(CREATE)
    again = session.client(CREATE)
    beside = session.client(BESIDE)
    assert told(created) == told(beside) == ["response.created"]
    assert told(again) == ["error:conversation_already_has_active_response"]
    session.finish()
    assert session.runs[-1].turn.messages[-1] == Message("user", ("Hello",))
    session.say("In it.")
    assert done(session.finish())["conversation_id"] is not None
    assert len(session.runs) == 3


def test_responses_that_wait_are_bounded(asked: RealtimeGaConversation) -> None:
    answers = [told(asked.client(BESIDE))[0] for _ in range(9)]
    assert answers == ["response.created"] * 8 + ["error:conversation_already_has_active_response"]


def test_a_cancel_ends_the_response_at_once_and_at_the_worker(session: RealtimeGaConversation) -> None:
    (created,) = session.respond()
    session.say("Seven")
    events = session.client(CANCEL)
    assert told(events) == CLOSING
    final = done(events)
    assert final["id"] == created["response"]["id"]
    assert final["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
    assert final["output"][0]["status"] == "incomplete"
    assert session.cancelled == [1]
    assert session.say(" apples") == session.finish(UnitEnd.CANCELLED) == []


def test_a_response_that_waits_can_be_cancelled_by_name(asked: RealtimeGaConversation) -> None:
    (waiting,) = asked.client(BESIDE)
    events = asked.client({"type": "response.cancel", "response_id": waiting["response"]["id"]})
    assert told(events) == ["response.done"]
    assert asked.cancelled == []


def test_cancelling_nothing_is_said_in_words_that_clients_know(session: RealtimeGaConversation) -> None:
    (answer,) = session.client(CANCEL)
    assert answer["error"]["code"] == "response_cancel_not_active"
    assert answer["error"]["message"].startswith("Cancellation failed")
    assert answer["error"]["event_id"] == "stop"


def test_the_next_response_waits_for_the_worker_to_close_the_cancelled_one(
    asked: RealtimeGaConversation,
) -> None:
    asked.prefill(40)
    assert done(asked.client(CANCEL))["usage"]["input_tokens"] == 40
    assert told(asked.client(CREATE)) == ["response.created"]
    assert len(asked.runs) == 1
    asked.finish(UnitEnd.CANCELLED)
    assert [run.unit for run in asked.runs] == [1, 2]


@pytest.mark.parametrize(
    "finish", [{"finish": Finish.LENGTH}, {"end": UnitEnd.CONTEXT_FULL}], ids=["length", "context"]
)
def test_an_answer_that_was_cut_is_incomplete(asked: RealtimeGaConversation, finish: dict[str, Any]) -> None:
    asked.say()
    final = done(asked.finish(**finish))
    assert final["status"] == "incomplete"
    assert final["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
    assert final["output"][0]["status"] == "incomplete"


def test_a_failure_is_an_error_and_still_the_end_of_the_response(asked: RealtimeGaConversation) -> None:
    asked.say()
    events = asked.finish(UnitEnd.FAILED, failure=Reason.INFERENCE_FAILED)
    assert told(events)[0] == "error:inference_failed"
    assert events[0]["error"]["type"] == "server_error"
    final = done(events)
    assert (final["status"], final["status_details"]["error"]["code"]) == ("failed", "inference_failed")
    assert asked.closed is None


def test_failures_in_a_row_end_the_session(session: RealtimeGaConversation) -> None:
    for _ in range(3):
        assert session.closed is None
        session.respond()
        session.finish(UnitEnd.FAILED, failure=Reason.INFERENCE_FAILED)
    assert session.closed is not None
    assert (session.closed.code, session.closed.reason) == (1011, "server_error.internal_error")


def test_a_lost_worker_fails_the_response_and_the_next_one_takes_another(
    asked: RealtimeGaConversation,
) -> None:
    asked.say()
    assert done(asked.fail(Reason.WORKER_LOST))["status"] == "failed"
    assert not asked.has_slot
    asked.client(CREATE)
    assert asked.has_slot
    asked.grant()
    asked.ready()
    assert asked.turn.messages[-1] == Message("assistant", ("Seven",))


def test_no_deltas_after_the_end(session: RealtimeGaConversation) -> None:
    session.answer()
    assert session.worker(Piece(1, "more", b"")) == []


@pytest.mark.parametrize("encoding", ["audio/pcmu", "audio/pcma"])
def test_g711_goes_both_ways(encoding: Any) -> None:
    given = {"format": {"type": encoding}}
    session = RealtimeGaConversation()
    told_session = session.begin(audio={"input": {"turn_detection": None, **given}, "output": given})
    session.client(append(1.0, format=Format(encoding, 8000)))
    session.client(COMMIT)
    events = session.answer()
    assert told_session["audio"]["input"]["format"] == {"type": encoding}
    (clip,) = session.turn.messages[-1].parts
    assert isinstance(clip, Speech)
    assert abs(len(clip.data) - 64_000) <= 4 * 40
    assert abs(len(heard(events)) - 8_000) <= 8


def test_audio_may_be_cut_anywhere() -> None:
    whole, cut = RealtimeGaConversation(), RealtimeGaConversation()
    data = base64.b64decode(sound(0.5, 0.3))
    for session, size in ((whole, len(data)), (cut, 777)):
        session.begin()
        for at in range(0, len(data), size):
            piece = base64.b64encode(data[at : at + size]).decode()
            assert session.client({"type": "input_audio_buffer.append", "audio": piece}) == []
        session.client(COMMIT)
        session.respond()

    (one,), (other,) = whole.turn.messages[-1].parts, cut.turn.messages[-1].parts
    assert isinstance(one, Speech)
    assert isinstance(other, Speech)
    assert len(one.data) == len(other.data)


def test_answer_to_congested_client_is_held_and_bounded(asked: RealtimeGaConversation) -> None:
    asked.do(asked.dialect.congested(True, asked.now))
    assert asked.say("One", 2.0) == asked.say("Two", 2.0) == asked.finish() == []
    assert asked.dialect.held_bytes == 4 * 96_000
    asked.do(asked.dialect.congested(False, asked.now))
    events = asked.wait(0.0)
    assert told(events)[-1] == "response.done"
    assert len(heard(events)) == 4 * 48_000


def test_answer_unread_for_60_s_fails_as_slow_consumer(asked: RealtimeGaConversation) -> None:
    asked.do(asked.dialect.congested(True, asked.now))
    events = [event for _ in range(61) for event in asked.say("Word", 1.0)]
    assert told(events) == ["error:slow_consumer", "response.done"]
    assert asked.cancelled == [1]
    assert asked.dialect.held_bytes == 0


def test_unsent_audio_can_be_cleared(asked: RealtimeGaConversation) -> None:
    asked.say("One")
    asked.do(asked.dialect.congested(True, asked.now))
    asked.say("Two")

    assert asked.client({"type": "output_audio_buffer.clear"}) == []
    asked.do(asked.dialect.congested(False, asked.now))
    asked.wait(0.0)
    events = asked.finish()

    assert done(events)["output"][0]["content"][0]["transcript"] == "OneTwo"
    assert len(heard(asked.sent)) == 48_000


@pytest.mark.parametrize(
    ("counts", "details"),
    [
        ({"input_text": 30}, (0, 0)),
        ({"input_text": 30, "cached": 16}, (16, 0)),
        ({"input_text": 30, "input_audio": 10, "cached": 40}, (30, 10)),
        ({"input_text": 30, "input_audio": 10, "cached": 16}, None),
    ],
)
def test_cached_tokens_have_details_by_kind_where_known(
    asked: RealtimeGaConversation, counts: dict[str, int], details: tuple[int, int] | None
) -> None:
    asked.say()
    given = done(asked.finish(tokens=counted.tokens(**counts)))["usage"]["input_token_details"]
    assert given["cached_tokens"] == counts.get("cached", 0)
    expected = details and {"text_tokens": details[0], "audio_tokens": details[1], "image_tokens": 0}
    assert given.get("cached_tokens_details") == expected
