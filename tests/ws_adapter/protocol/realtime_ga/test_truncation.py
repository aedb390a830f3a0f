"""Conversations without an end: the oldest is dropped, unless the client forbids it."""

import gc
import tracemalloc
from typing import Any

import pytest

from tests.support.long import long, seeds
from tests.support.schemas import Event
from tests.ws_adapter.support.realtime_ga_conversation import (
    COMMIT,
    COMMITTED,
    WEATHER,
    RealtimeGaConversation,
    append,
    message,
    output,
    told,
    truncate,
    update,
)
from ws_adapter.protocol.core.turn import Speech
from ws_adapter.protocol.realtime_ga.conversation import MOST_BYTES, MOST_ITEMS

BYTES_PER_S = 4 * 16_000


def talking(is_observed: bool = True, **session: Any) -> RealtimeGaConversation:
    talk = RealtimeGaConversation(is_observed=is_observed)
    talk.begin(**session)
    return talk


def retention(ratio: float) -> Event:
    return {"type": "retention_ratio", "retention_ratio": ratio}


def type_many(talk: RealtimeGaConversation, count: int = MOST_ITEMS) -> None:
    """The user writes so many items."""
    for i in range(count):
        talk.now += 1.0
        talk.client(message(str(i)))


def type_turn(talk: RealtimeGaConversation, text: str) -> None:
    """The user writes and the model answers."""
    talk.now += 1.0
    talk.client(message(text))
    talk.answer(f"Answer to {text}.")


def speak_turn(talk: RealtimeGaConversation, seconds: float) -> str:
    """The user speaks and the model answers; the id of the user's item."""
    talk.now += seconds
    committed = talk.commit(seconds)[0]
    talk.answer("I see.")
    item_id: str = committed["item_id"]
    return item_id


def clips_s(talk: RealtimeGaConversation) -> float:
    """How much of the user's speech went to the worker with the last turn."""
    parts = [part for said in talk.turn.messages for part in said.parts]
    return sum(len(part.data) for part in parts if isinstance(part, Speech)) / BYTES_PER_S


@pytest.mark.parametrize(("truncation", "left"), [("auto", 128), (retention(0.75), 192), (retention(0.0), 1)])
def test_full_conversation_drops_its_oldest_items(truncation: Any, left: int) -> None:
    talk = talking(is_observed=False, truncation=truncation)
    type_many(talk)
    talk.client(message("last"))
    talk.answer()
    told_texts = [said.parts[0] for said in talk.turn.messages[1:]]
    assert told_texts == [*map(str, range(MOST_ITEMS - left, MOST_ITEMS)), "last"]
    assert "error" not in told(talk.sent)


def test_full_conversation_drops_the_oldest_clips_and_keeps_their_words() -> None:
    talk = talking()
    talk.client(message("Call me Ishmael.", "system"))
    transcribed = {"type": "input_audio", "transcript": "the first words", "audio": append(60.0)["audio"]}
    talk.client(message(content=[transcribed]))
    for _ in range(6):
        speak_turn(talk, 60.0)
    assert clips_s(talk) == pytest.approx(60.0 * 4, abs=1)
    parts = [said.parts for said in talk.turn.messages]
    assert ("Call me Ishmael.",) in parts
    assert ("the first words",) in parts
    assert "error" not in told(talk.sent)


def test_dropped_clip_is_not_sent_to_the_worker_again() -> None:
    talk = talking(is_observed=False)
    sent = []
    for _ in range(15):
        speak_turn(talk, 60.0)
        sent.append(clips_s(talk))
    assert max(sent) <= MOST_BYTES / BYTES_PER_S
    assert min(sent[6:]) >= MOST_BYTES / BYTES_PER_S * 0.4


def test_dropped_items_may_still_be_named_by_a_client() -> None:
    """A client cannot know what was dropped, and some end at any error."""
    talk = talking(tools=[WEATHER])
    talk.client(message("Hello"))
    talk.respond()
    item_id = talk.say("Let me see.")[0]["item"]["id"]
    talk.call(id="call_early")
    talk.finish()
    type_many(talk)

    assert told(talk.client(truncate(item_id, 100))) == ["conversation.item.truncated"]
    added, _ = talk.client({**message("front"), "previous_item_id": item_id})
    assert added["previous_item_id"] is None
    assert told(talk.client(output("call_early"))) == COMMITTED[1:]
    gone = {"type": "conversation.item.delete", "item_id": item_id}
    assert told(talk.client(gone)) == ["conversation.item.deleted"]
    (retrieved,) = talk.client({"type": "conversation.item.retrieve", "item_id": item_id})
    assert retrieved["error"]["code"] == "item_retrieve_invalid_item_id"


def test_answer_under_way_is_not_dropped() -> None:
    talk = talking(is_observed=False, truncation=retention(0.0))
    talk.client(message("Hello"))
    talk.respond()
    item_id = talk.say("Once")[0]["item"]["id"]
    type_many(talk, MOST_ITEMS + 10)
    assert talk.say(" upon a time")
    done = talk.finish()
    assert told(done)[-1] == "response.done"
    assert item_id in {event["item"]["id"] for event in done if event["type"] == "conversation.item.done"}


def test_nothing_is_dropped_with_truncation_disabled() -> None:
    talk = talking(truncation="disabled")
    ids = [speak_turn(talk, 60.0) for _ in range(6)]
    talk.client(append(60.0))
    (full,) = talk.client(COMMIT)
    assert full["error"]["code"] == "conversation_full"
    assert "24 MiB" in full["error"]["message"]
    talk.client({"type": "conversation.item.delete", "item_id": ids[0]})
    assert told(talk.client(COMMIT))[0] == "input_audio_buffer.committed"


def test_conversation_may_be_disabled_and_enabled_while_it_is_full() -> None:
    talk = talking(is_observed=False, truncation="disabled")
    type_many(talk)
    assert told(talk.client(message("one more"))) == ["error:conversation_full"]
    assert told(talk.client({"type": "response.create"})) == ["error:conversation_full"]
    talk.client(update(truncation="auto"))
    assert told(talk.client(message("one more")))[0] == "conversation.item.added"


def test_item_that_never_fits_is_refused_and_nothing_is_dropped() -> None:
    talk = talking()
    talk.client(message("Hello"))
    talk.client(update(audio={"input": {"turn_detection": None}}))
    clip = {"type": "input_audio", "audio": append(200.0)["audio"]}
    (answer,) = talk.client(message(content=[clip, clip]))
    talk.answer()
    assert (answer["error"]["code"], answer["error"]["param"]) == ("invalid_value", "item")
    assert [said.parts for said in talk.turn.messages[1:]] == [("Hello",)]


SLACK_BYTES = 2**17


def peaks(turns: int, take: Any) -> list[int]:
    """Bytes of the most memory in the second and in the last third of a conversation."""
    talk, most = RealtimeGaConversation(is_observed=False), []
    talk.begin()
    tracemalloc.start()
    try:
        for _ in range(3):
            gc.collect()
            tracemalloc.reset_peak()
            for i in range(turns // 3):
                take(talk, i)
                assert "error" not in told(talk.sent)
                for kept in (talk.sent, talk.runs, talk.configured[1:]):
                    kept.clear()
            most.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert len(talk.dialect._dialogue.conversation) <= MOST_ITEMS  # type: ignore[union-attr]
    return most[1:]


@pytest.mark.parametrize("turns", seeds(480, 10_000))
@pytest.mark.long
def test_memory_of_typed_turns_stays_flat(turns: int) -> None:
    second, last = peaks(turns, lambda talk, i: type_turn(talk, f"question {i % 10}"))
    assert last < second + SLACK_BYTES


@pytest.mark.parametrize("minutes", seeds(24, 120))
@long
def test_memory_of_spoken_turns_stays_flat(minutes: int) -> None:
    second, last = peaks(minutes * 2, lambda talk, _: speak_turn(talk, 30.0))
    assert last < second * 1.1
    assert last < 5 * MOST_BYTES
