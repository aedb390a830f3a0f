"""Texts for a Live session that is running: read by models that can, and refused by name for the others."""

import pytest

from antiphon.contract import Reason
from tests.support.schemas import Event
from tests.ws_adapter.support.live_conversation import LiveConversation, append, told
from ws_adapter.protocol.core.signals import TextPurpose, UnitEnd
from ws_adapter.protocol.duplex.texts import MOST_BYTES, MOST_TEXTS

BOTH = frozenset({TextPurpose.INSTRUCTIONS, TextPurpose.THINKING})
LISTEN = UnitEnd.LISTEN


def text(kind: str = "thinking", content: str = "The user is called Ada.", **fields: object) -> Event:
    return {"type": f"session.{kind}.append", "content": content, "delegation_id": None, **fields}


def live(purposes: frozenset[TextPurpose] = BOTH) -> LiveConversation:
    """A session that has begun, with a model that reads texts for these purposes."""
    session = LiveConversation()
    session.begin(reads=purposes)
    return session


@pytest.fixture
def session() -> LiveConversation:
    return live()


@pytest.mark.parametrize("kind", ["instructions", "thinking"])
def test_text_goes_with_the_next_second_and_is_acknowledged_when_the_model_has_it(kind: str) -> None:
    session = live()
    session.talk((LISTEN, ""), (LISTEN, ""))
    assert told(session.client(text(kind, event_id="note"))) == []
    after = session.talk((LISTEN, ""), (LISTEN, ""))
    read = [(TextPurpose(kind), "The user is called Ada.")]
    assert [[(t.purpose, t.text) for t in run.texts] for run in session.runs[2:]] == [read, []]
    (ack,) = [event for event in after if event["type"] == f"session.{kind}.appended"]
    assert (ack["client_event_id"], ack["start_ms"], ack["end_ms"]) == ("note", 2000, 2000)


def test_texts_are_read_in_their_order(session: LiveConversation) -> None:
    given = [("instructions", "Be brief."), ("thinking", "It rains."), ("instructions", "Sing.")]
    for kind, content in given:
        session.client(text(kind, content))
    after = session.talk((LISTEN, ""))
    assert [(t.purpose.value, t.text) for t in session.runs[0].texts] == given
    acks = [kind for kind in told(after) if kind.endswith("appended")]
    assert acks == [f"session.{kind}.appended" for kind, _ in given]


@pytest.mark.parametrize(
    ("kind", "purposes"),
    [
        ("instructions", frozenset()),
        ("thinking", frozenset()),
        ("thinking", frozenset({TextPurpose.INSTRUCTIONS})),
        ("commentary", BOTH),
    ],
)
def test_text_kind_unsupported_by_model_is_rejected(kind: str, purposes: frozenset[TextPurpose]) -> None:
    session = live(purposes)
    (error,) = session.client(text(kind, event_id="note"))
    assert (error["error"]["code"], error["error"]["client_event_id"]) == ("unsupported", "note")
    session.talk((LISTEN, ""))
    assert not session.runs[0].texts


@pytest.mark.parametrize(
    ("event", "code", "param"),
    [
        (text(content=""), "missing_required_parameter", "content"),
        ({"type": "session.thinking.append"}, "missing_required_parameter", "content"),
        (text(content="é" * (MOST_BYTES // 2 + 1)), "invalid_value", "content"),
        (text(content="e" * (MOST_BYTES + 1)), "invalid_value", "content"),
        (text(delegation_id="del_1"), "invalid_value", "delegation_id"),
        (text(purpose="silent"), "unknown_parameter", "purpose"),
    ],
)
def test_bad_text_is_refused_and_changes_nothing(event: Event, code: str, param: str) -> None:
    session = live()
    (error,) = session.client(event)
    assert (error["error"]["code"], error["error"]["param"]) == (code, param)
    session.talk((LISTEN, ""))
    assert not session.runs[0].texts


def test_texts_over_unit_size_wait_for_next_unit(session: LiveConversation) -> None:
    for content in ("a" * 1500, "b" * 1500, "c" * 100, "é" * (MOST_BYTES // 2)):
        session.client(text(content=content))
    session.talk((LISTEN, ""), (LISTEN, ""), (LISTEN, ""))
    assert [[t.text[0] for t in run.texts] for run in session.runs[:3]] == [["a"], ["b", "c"], ["é"]]
    assert session.runs[2].texts[0].size == MOST_BYTES


def test_only_so_many_texts_wait_for_a_second_that_does_not_come(session: LiveConversation) -> None:
    answers = [told(session.client(text(content=f"note {i}"))) for i in range(MOST_TEXTS + 1)]
    assert answers == [[]] * MOST_TEXTS + [["error:invalid_value"]]
    assert session.dialect.held_bytes == sum(len(f"note {i}") for i in range(MOST_TEXTS))


def test_text_of_failed_unit_is_reported_to_its_sender(session: LiveConversation) -> None:
    session.client(text(event_id="note"))
    session.client(append(1.1))
    after = session.finish(UnitEnd.FAILED, failure=Reason.INPUT_TOO_LONG, field="duplex.texts")
    (error,) = [event for event in after if event["type"] == "error"]
    assert error["error"]["client_event_id"] == "note"
    assert "session.thinking.appended" not in told(session.sent)


def test_text_is_not_lost_with_a_second_that_comes_too_late(session: LiveConversation) -> None:
    """The text belongs to the next second that the model hears, whichever that is."""
    session.client(append(3.2))
    assert len(session.runs) == 2
    session.client(text())
    session.wait(30.0)
    session.client(append(1.0))
    session.finish(LISTEN)
    assert [t.text for t in session.runs[2].texts] == ["The user is called Ada."]
