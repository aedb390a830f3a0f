"""The table of docs/protocol/states.md, walked in any order: each event does what it says there."""

from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.long import examples
from tests.support.schemas import Event
from tests.support.states import names_in, read_states
from tests.ws_adapter.support.conversation import ready_signal
from tests.ws_adapter.support.live_conversation import LiveConversation, append, start, told
from ws_adapter.protocol.core.signals import TextPurpose
from ws_adapter.protocol.duplex.texts import MOST_TEXTS

READ: Final = frozenset({TextPurpose.INSTRUCTIONS, TextPurpose.THINKING, TextPurpose.COMMENTARY})
ANYTHING_ELSE: Final = "anything else"
SLOT: Final = "a worker takes it"
TIME: Final = "time passes"

EVENTS: Final[dict[str, Event]] = {
    "session.start": start(),
    "session.input_audio.append": append(0.3),
    "session.input_audio.mute": {"type": "session.input_audio.mute"},
    "session.input_audio.unmute": {"type": "session.input_audio.unmute"},
    "session.update": {"type": "session.update", "session": {}},
    "session.instructions.append": {"type": "session.instructions.append", "content": "Be brief."},
    "session.thinking.append": {"type": "session.thinking.append", "content": "It rains."},
    "session.commentary.append": {"type": "session.commentary.append", "content": "Greet the user."},
    "session.close": {"type": "session.close"},
    ANYTHING_ELSE: {"type": "session.dance"},
}


TABLE: Final = read_states("Live")


def test_the_table_is_whole() -> None:
    assert {event for event, _ in TABLE} == set(EVENTS)
    assert {state for _, state in TABLE} == {"new", "waiting", "active", "closing"}


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.sampled_from([*EVENTS, SLOT, SLOT, TIME]), max_size=MOST_TEXTS + 4))
def test_each_event_does_what_the_table_says(steps: list[str]) -> None:
    session, state = LiveConversation(), "new"
    for step in steps:
        if state == "over":
            break
        if step == TIME:
            # Nothing is due so soon, but for a session without anything left to say.
            session.wait(0.1)
            state = "over" if session.closed is not None else state
            assert state in ("new", "waiting", "active", "closing") or session.closed is not None
        elif step == SLOT:
            if state == "waiting":
                session.grant()
                assert "session.started" in told(session.worker(ready_signal(text_purposes=READ)))
                state = "active"
        else:
            state = follow(session, step, state)


def follow(session: LiveConversation, step: str, state: str) -> str:
    """Sends an event, and holds what it does against the table; the state that follows."""
    names = names_in(TABLE[step, state])
    says = TABLE[step, state].partition(",")[0]
    answers = told(session.client(EVENTS[step]))
    is_refused = says.startswith("`")
    if is_refused:
        assert answers == [f"error:{names[0]}"]
        assert session.closed is None
        return state
    if says == "closing" and session.closed is not None:
        # Nothing was being said: it is over at once.
        assert answers[-1] == "session.closed"
        return "over"
    assert (session.closed is not None) == (says == "over")
    assert [answer for answer in answers if answer != "session.usage.updated"] == names
    return says
