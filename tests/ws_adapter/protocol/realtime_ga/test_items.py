"""Items of a Realtime conversation: made, told, cut, forgotten."""

import base64
import json

import numpy as np
import pytest

from tests.support.schemas import Event
from tests.ws_adapter.support.duplex_conversation import pictured
from tests.ws_adapter.support.realtime_ga_conversation import (
    COMMIT,
    RealtimeGaConversation,
    append,
    begun,
    granted,
    message,
    sound,
    told,
    truncate,
)
from ws_adapter.protocol.core.signals import Piece
from ws_adapter.protocol.core.turn import Message, Picture, Speech


@pytest.fixture
def session() -> RealtimeGaConversation:
    return begun()


def session_with(*texts: str) -> tuple[RealtimeGaConversation, list[str]]:
    """A session whose user has said these, and the ids of them."""
    session = begun()
    return session, [session.client(message(text))[0]["item"]["id"] for text in texts]


def retrieve(session: RealtimeGaConversation, item_id: str) -> Event:
    (event,) = session.client({"type": "conversation.item.retrieve", "item_id": item_id})
    assert event["type"] == "conversation.item.retrieved", event
    item: Event = event["item"]
    return item


def spoken(session: RealtimeGaConversation, *pieces: tuple[str, float]) -> str:
    """The model has said these, so long each; the id of its item."""
    session.respond()
    events = [event for piece in pieces for event in session.say(*piece)]
    session.finish()
    item_id: str = events[0]["item"]["id"]
    return item_id


def remembered(session: RealtimeGaConversation) -> list[str]:
    """Return the model's own earlier answers in its prompt."""
    session.respond(conversation="none", output_modalities=["text"])
    session.finish()
    return [str(m.parts[0]) for m in session.turn.messages if m.role == "assistant"]


def test_items_stand_where_they_are_put() -> None:
    session, (first, _) = session_with("1", "2")
    front = session.client({**message("0"), "previous_item_id": "root"})
    middle = session.client({**message("1.5"), "previous_item_id": first})
    assert [event["previous_item_id"] for event in front] == [None, None]
    assert [event["previous_item_id"] for event in middle] == [first, first]
    session.respond()
    assert [m.parts[0] for m in session.turn.messages[1:]] == ["0", "1", "1.5", "2"]
    (answer,) = session.client({**message("9"), "previous_item_id": "item_9"})
    assert (answer["error"]["code"], answer["error"]["param"]) == ("invalid_value", "previous_item_id")


def test_items_are_added_without_nulls_and_never_created_as_in_the_beta() -> None:
    session, _ = session_with("Hello")
    session.answer()
    assert "conversation.item.created" not in told(session.sent)
    assert told(session.sent).count("conversation.item.added") == 2
    assert "null" not in json.dumps([event["item"] for event in session.sent if "item" in event])


def test_an_item_may_be_named_but_not_twice(session: RealtimeGaConversation) -> None:
    added, done = session.client(message(id="mine"))
    (answer,) = session.client(message(id="mine"))
    assert added["item"]["id"] == done["item"]["id"] == "mine"
    assert answer["error"]["code"] == "item_create_duplicate_item_id"


def test_a_message_of_the_user_holds_everything(session: RealtimeGaConversation) -> None:
    content = [
        {"type": "input_text", "text": "Look"},
        {"type": "input_image", "image_url": f"data:image/jpeg;base64,{pictured()}", "detail": "low"},
        {"type": "input_audio", "audio": sound(0.5)},
        {"type": "input_audio", "transcript": "as I said"},
    ]
    added, _ = session.client(message(content=content))
    session.respond()

    assert added["item"]["content"] == [
        {"type": "input_text", "text": "Look"},
        {"type": "input_image", "detail": "low"},
        {"type": "input_audio", "transcript": None},
        {"type": "input_audio", "transcript": "as I said"},
    ]
    text, picture, clip, said = session.turn.messages[-1].parts
    assert (text, said) == ("Look", "as I said")
    assert isinstance(picture, Picture)
    assert isinstance(clip, Speech)
    assert abs(len(clip.data) - 32_000) <= 160
    assert retrieve(session, added["item"]["id"])["content"][1]["image_url"].endswith(pictured())


def test_a_history_can_be_replayed() -> None:
    session, _ = session_with("Hello")
    session.client(message("Hi.", "assistant"))
    output = {"type": "output_audio", "transcript": "How are you?"}
    session.client(message(role="assistant", content=[output]))
    session.respond()
    assert session.turn.messages[1:] == (
        Message("user", ("Hello",)),
        Message("assistant", ("Hi.",)),
        Message("assistant", ("How are you?",)),
    )


@pytest.mark.parametrize(
    ("part", "role", "param"),
    [
        ({"type": "output_audio", "transcript": "Hi", "audio": "AAAA"}, "assistant", "audio"),
        ({"type": "input_text", "text": "Hi"}, "assistant", "type"),
        ({"type": "input_audio", "audio": "AAAA"}, "system", "type"),
        ({"type": "input_audio"}, "user", "audio"),
        ({"type": "input_audio", "audio": "A!"}, "user", "audio"),
        ({"type": "input_image", "image_url": "https://example.org/a.png"}, "user", "image_url"),
        ({"type": "input_image", "image_url": "data:image/png;base64,AAAA"}, "user", "image_url"),
        ({"type": "input_video"}, "user", "type"),
        ({"type": "input_text"}, "user", "text"),
    ],
)
def test_a_part_that_cannot_be_used_refuses_the_item(part: Event, role: str, param: str) -> None:
    session = begun()
    (answer,) = session.client(message(role=role, content=[part]))
    assert answer["error"]["param"] == f"item.content[0].{param}"
    assert answer["error"]["code"] in ("invalid_value", "missing_required_parameter")


def test_full_input_buffer_is_reported_once(session: RealtimeGaConversation) -> None:
    session.client(append(75.0))
    (answer,) = session.client(append(75.0))
    assert (answer["error"]["code"], answer["error"]["param"]) == ("input_audio_buffer_full", "audio")
    assert session.client(append(75.0)) == []
    assert told(session.client(COMMIT))[0] == "input_audio_buffer.committed"
    assert session.client(append(75.0)) == []


def test_a_users_sound_is_returned_as_the_model_heard_it(session: RealtimeGaConversation) -> None:
    session.client(append(1.0, 0.25))
    (committed, *_) = session.client(COMMIT)
    (part,) = retrieve(session, committed["item_id"])["content"]
    samples = np.frombuffer(base64.b64decode(part["audio"]), "<i2") / 32768
    assert abs(samples.size - 24_000) <= 64
    assert abs(float(np.median(samples)) - 0.25) < 0.001


def test_a_models_sound_is_returned_as_it_was_sent() -> None:
    session, _ = session_with("Hello")
    item_id = spoken(session, ("Seven", 1.0))
    (part,) = retrieve(session, item_id)["content"]
    assert part["transcript"] == "Seven"
    assert len(base64.b64decode(part["audio"])) == 48_000


def test_deleted_is_deleted() -> None:
    session, (item_id,) = session_with("Hello")
    (deleted,) = session.client({"type": "conversation.item.delete", "item_id": item_id})
    assert (deleted["type"], deleted["item_id"]) == ("conversation.item.deleted", item_id)
    session.respond()
    assert len(session.turn.messages) == 1


@pytest.mark.parametrize("name", ["truncate", "retrieve", "delete"])
def test_an_unknown_item(session: RealtimeGaConversation, name: str) -> None:
    event = {"type": f"conversation.item.{name}", "item_id": "item_9"}
    (answer,) = session.client(truncate("item_9", 0) if name == "truncate" else event)
    assert answer["error"]["code"] == f"item_{name}_invalid_item_id"


def test_a_truncated_answer_keeps_the_words_that_were_heard() -> None:
    session, _ = session_with("Hello")
    item_id = spoken(session, ("One two three four. ", 2.0), ("Five six seven eight.", 2.0))
    (answer,) = session.client(truncate(item_id, 3000))
    assert answer == {
        "type": "conversation.item.truncated",
        "event_id": answer["event_id"],
        "item_id": item_id,
        "content_index": 0,
        "audio_end_ms": 3000,
    }
    assert remembered(session) == ["One two three four. Five six "]
    (part,) = retrieve(session, item_id)["content"]
    assert part["transcript"] == "One two three four. Five six "
    assert len(base64.b64decode(part["audio"])) == 3 * 48_000


def test_words_that_come_before_any_sound_are_not_heard_before_it() -> None:
    session, _ = session_with("Hello")
    session.respond()
    unit = session.runs[-1].unit
    session.worker(Piece(unit, "One two ", b""), Piece(unit, "three four.", b""))
    item_id = session.say("", 2.0)[0]["item_id"]
    session.finish()
    session.client(truncate(item_id, 0))
    assert remembered(session) == []


def test_an_answer_can_be_truncated_while_it_is_spoken_and_after_it_was_interrupted() -> None:
    session, _ = session_with("Hello")
    session.respond()
    item_id = session.say("One two three four.", 2.0)[0]["item"]["id"]
    assert told(session.client(truncate(item_id, 1000))) == ["conversation.item.truncated"]
    session.say(" Five six.", 1.0)
    session.finish()
    assert remembered(session) == ["One two "]

    session.respond()
    item_id = session.say("One two three four.", 2.0)[0]["item"]["id"]
    session.client({"type": "response.cancel"})
    assert told(session.client(truncate(item_id, 1000))) == ["conversation.item.truncated"]


def test_a_truncation_beyond_the_end_is_refused_and_a_late_one_is_not() -> None:
    session, (of_the_user,) = session_with("Hello")
    item_id = spoken(session, ("Seven", 1.0))
    assert told(session.client(truncate(item_id, 1050))) == ["conversation.item.truncated"]
    assert remembered(session) == ["Seven"]
    (answer,) = session.client(truncate(item_id, 5000))
    assert answer["error"]["code"] == "invalid_value"
    assert answer["error"]["message"] == "Audio content of 1000ms is already shorter than 5000ms"
    assert answer["error"]["event_id"] == "cut"
    (answer,) = session.client(truncate(of_the_user, 0))
    assert answer["error"]["code"] is None
    assert answer["error"]["message"] == "Only model output audio messages can be truncated"


@pytest.mark.parametrize(
    ("frame", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b"[]", "invalid_event", None),
        (b"{}", "missing_required_parameter", "type"),
        (b'{"type":7}', "invalid_value", "type"),
        (b'{"type":"session.dance"}', "invalid_value", "type"),
        (b'{"type":"input_audio_buffer.append"}', "missing_required_parameter", "audio"),
        (b'{"type":"input_audio_buffer.append","audio":7}', "invalid_type", "audio"),
        (b'{"type":"input_audio_buffer.append","audio":"AA=A"}', "invalid_value", "audio"),
        (b'{"type":"input_audio_buffer.commit","loud":1}', "unknown_parameter", "loud"),
    ],
)
def test_a_frame_that_holds_no_event(frame: bytes, code: str, param: str | None) -> None:
    session = begun()
    (answer,) = session.client(frame)
    assert (answer["error"]["code"], answer["error"]["param"]) == (code, param)
    assert session.closed is None


def test_unknown_event_error_lists_known_events(session: RealtimeGaConversation) -> None:
    (answer,) = session.client(b'{"type":"session.dance","event_id":"d"}')
    assert "conversation.item.truncate" in answer["error"]["message"]
    assert answer["error"]["event_id"] == "d"
    (answer,) = session.do(session.dialect.binary_frame(session.now))
    assert (answer["error"]["code"], session.closed) == ("invalid_event", None)


def test_99_ms_are_too_short_to_commit(session: RealtimeGaConversation) -> None:
    session.client(append(0.099))
    (answer,) = session.client(COMMIT)
    assert answer["error"]["code"] == "input_audio_buffer_commit_empty"
    assert answer["error"]["message"] == (
        "Error committing input audio buffer: buffer too small. Expected at least 100ms of audio, but buffer "
        "only has 99.00ms of audio."
    )
    session.client(append(0.001))
    assert told(session.client(COMMIT))[0] == "input_audio_buffer.committed"


@pytest.mark.parametrize("spoils", [False, True])
def test_large_item_is_read_in_a_thread_and_rejected_by_its_field(spoils: bool) -> None:
    part = {"type": "input_audio", "audio": sound(8.0)[:-4] + "%%%%" * spoils}
    events = granted().client({**message(content=[part]), "event_id": "large"})
    if spoils:
        (error,) = events
        assert (error["error"]["param"], error["error"]["event_id"]) == ("item.content[0].audio", "large")
    else:
        assert told(events) == ["conversation.item.added", "conversation.item.done"]
