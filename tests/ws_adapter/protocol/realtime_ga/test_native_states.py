"""The table of docs/protocol/states.md for turns of the model's own, walked in any order."""

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.long import examples
from tests.support.schemas import Event
from tests.support.states import names_in, read_states, state_after
from tests.ws_adapter.support.realtime_ga_conversation import (
    SEMANTIC,
    NativeConversation,
    message,
    told,
    update,
)
from ws_adapter.protocol.core.signals import UnitEnd

APPEND: Final = "input_audio_buffer.append"
SPEECH: Final = "input_audio_buffer.append of speech"
COMMIT: Final = "input_audio_buffer.commit"
READY: Final = "the worker is ready"
MODEL: Final = {
    "the model listens": UnitEnd.LISTEN,
    "the model speaks": UnitEnd.CHUNK,
    "the model has spoken": UnitEnd.TURN,
}

EVENTS: Final[dict[str, Event]] = {
    "session.update with the same settings": update(**SEMANTIC),
    "session.update with other instructions": update(instructions="Sing."),
    COMMIT: {"type": "input_audio_buffer.commit"},
    "input_audio_buffer.clear": {"type": "input_audio_buffer.clear"},
    "output_audio_buffer.clear": {"type": "output_audio_buffer.clear"},
    "conversation.item.create": message(),
    "response.create": {"type": "response.create"},
    "response.cancel": {"type": "response.cancel"},
    "anything else": {"type": "session.dance"},
}
INNER: Final = ("response.output", "response.content", "conversation.item.done")
"""Types of events, by prefix, that belong to the end of a response."""

TABLE: Final = read_states("Realtime with turns of the model's own")


def test_the_table_is_whole() -> None:
    assert {event for event, _ in TABLE} == {*EVENTS, APPEND, SPEECH}
    assert {state for _, state in TABLE} == {"waiting", "listening", "speaking"}


@pytest.mark.parametrize(("step", "state"), TABLE)
def test_each_cell_of_the_table(step: str, state: str) -> None:
    session = NativeConversation(is_ready=state != "waiting")
    if state == "speaking":
        go_on(session, UnitEnd.CHUNK)
    if step == COMMIT:
        session.hear(seconds=0.2)
    follow(session, step, state)
    assert state == "waiting" or state_of(session) == state_after(TABLE[step, state], state)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.booleans(), st.lists(st.sampled_from([*EVENTS, APPEND, SPEECH, READY, *MODEL, *MODEL]), max_size=16)
)
def test_any_order_of_events_is_a_walk_through_the_table(is_ready: bool, steps: list[str]) -> None:
    session, is_waiting = NativeConversation(is_ready=is_ready), not is_ready
    for step in steps:
        if is_waiting and step == "response.create":
            continue
        if step == READY and is_waiting:
            session.settle()
            is_waiting = False
        elif step in MODEL and not is_waiting:
            go_on(session, MODEL[step])
        elif step not in (READY, *MODEL):
            if step == COMMIT:
                session.hear(seconds=0.2)  # it may hold less than it needs
            state = "waiting" if is_waiting else state_of(session)
            follow(session, step, state)
            assert ("waiting" if is_waiting else state_of(session)) == state_after(TABLE[step, state], state)
            if step == SPEECH:  # which has an end
                assert told(session.hear(seconds=1.0)) == [
                    "input_audio_buffer.speech_stopped",
                    "input_audio_buffer.committed",
                    "conversation.item.added",
                    "conversation.item.done",
                ]


def go_on(session: NativeConversation, end: UnitEnd) -> None:
    """A second passes, and the model does this, unless it was told to listen."""
    answers = session.dialect._answers
    if answers.active is None and session.is_asked:
        session.finish(UnitEnd.CANCELLED)
    session.settle()
    if answers.active is not None:
        session.say() if end is UnitEnd.CHUNK else session.finish()
        return
    for _ in range(8):
        if session.unanswered:
            break
        session.hear(seconds=0.25)
    unit = session.unanswered[0]
    if unit.unit <= max(session.cancelled, default=0):
        session.answer_unit(UnitEnd.CANCELLED)
    elif unit.force_listen or end is UnitEnd.LISTEN:
        session.answer_unit(UnitEnd.LISTEN)
    else:
        session.answer_unit(end, "Seven")
        assert state_of(session) == ("speaking" if end is UnitEnd.CHUNK else "listening")


def state_of(session: NativeConversation) -> str:
    """As a client sees it."""
    names = told(session.sent)
    return "speaking" if names.count("response.created") > names.count("response.done") else "listening"


def follow(session: NativeConversation, step: str, state: str) -> None:
    """Sends an event, and holds what it does against the table."""
    names = names_in(TABLE[step, state])
    if step in (APPEND, SPEECH):
        answers = told(session.hear(0.9 if step == SPEECH else 0.0, 0.5))
    else:
        answers = told(session.client(EVENTS[step]))
    if TABLE[step, state].startswith("`"):
        assert answers == [f"error:{names[0]}"]
    else:
        ends_response = step in (SPEECH, "response.cancel")
        assert [name for name in answers if not (ends_response and name.startswith(INNER))] == names
