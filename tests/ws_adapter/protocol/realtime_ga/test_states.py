"""The table of docs/protocol/states.md, walked in any order: each event does what it says there."""

from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.long import examples
from tests.support.schemas import Event
from tests.support.states import names_in, read_states, state_after
from tests.ws_adapter.support.realtime_ga_conversation import (
    RealtimeGaConversation,
    append,
    message,
    told,
    update,
)
from ws_adapter.protocol.realtime_ga.answers import MOST_OUT_OF_BAND

ANYTHING_ELSE: Final = "anything else"
BESIDE: Final = "response.create with conversation: none"
SLOT: Final = "a worker takes it"
ANSWER: Final = "the worker answers"
APPEND: Final = "input_audio_buffer.append"

EVENTS: Final[dict[str, Event]] = {
    "session.update": update(instructions="Be brief."),
    APPEND: append(0.2),
    "input_audio_buffer.commit": {"type": "input_audio_buffer.commit"},
    "input_audio_buffer.clear": {"type": "input_audio_buffer.clear"},
    "output_audio_buffer.clear": {"type": "output_audio_buffer.clear"},
    "conversation.item.create": message(),
    "response.create": {"type": "response.create"},
    BESIDE: {"type": "response.create", "response": {"conversation": "none"}},
    "response.cancel": {"type": "response.cancel"},
    ANYTHING_ELSE: {"type": "session.dance"},
}


TABLE: Final = read_states("Realtime")


def test_the_table_is_whole() -> None:
    assert {event for event, _ in TABLE} == set(EVENTS)
    assert {state for _, state in TABLE} == {"waiting", "idle", "answering"}


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.sampled_from([*EVENTS, SLOT, ANSWER, ANSWER]), max_size=12))
def test_each_event_does_what_the_table_says(steps: list[str]) -> None:
    session, is_waiting = RealtimeGaConversation(), True
    for step in steps:
        if step == SLOT and is_waiting:
            assert told(session.grant())[:2] == ["session.created", "conversation.created"]
            session.client(update(audio={"input": {"turn_detection": None}}))
            is_waiting = False
        elif step == ANSWER:
            session.ready()
            if session.is_asked:
                session.say()
                session.finish()
        elif step in EVENTS:
            if step == "input_audio_buffer.commit":
                session.client(EVENTS[APPEND])  # it may hold less than it needs
            state = "waiting" if is_waiting else state_of(session)
            if state == "waiting" or step != BESIDE or len(open_responses(session)) < MOST_OUT_OF_BAND:
                follow(session, step, state)
                assert is_waiting or state_of(session) == state_after(TABLE[step, state], state)


def open_responses(session: RealtimeGaConversation) -> dict[str, Event]:
    """Return the responses that are not done, by their ids."""
    responses: dict[str, Event] = {}
    for event in session.sent:
        if event["type"] == "response.created":
            responses[event["response"]["id"]] = event["response"]
        elif event["type"] == "response.done":
            del responses[event["response"]["id"]]
    return responses


def state_of(session: RealtimeGaConversation) -> str:
    """As a client sees it."""
    is_active = any(response["conversation_id"] for response in open_responses(session).values())
    return "answering" if is_active else "idle"


def follow(session: RealtimeGaConversation, step: str, state: str) -> None:
    """Sends an event, and holds what it does against the table."""
    names = names_in(TABLE[step, state])
    says = TABLE[step, state].partition(",")[0]
    answers = told(session.client(EVENTS[step]))
    if says == "held":
        assert answers == []
    elif says.startswith("`"):
        assert answers == [f"error:{names[0]}"]
    else:
        inner = ("response.output", "response.content", "conversation.item.done")
        assert [name for name in answers if step != "response.cancel" or not name.startswith(inner)] == names
