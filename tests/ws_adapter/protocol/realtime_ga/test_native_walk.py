"""Any order of events with turns of the model's own: none breaks a session, and every response ends."""

from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.long import examples
from tests.support.schemas import Event
from tests.ws_adapter.support.realtime_ga_conversation import (
    SEMANTIC,
    NativeConversation,
    message,
    truncate,
    update,
)
from ws_adapter.protocol.core.signals import GoingAway, UnitEnd

SERVER: Final[Event] = {"audio": {"input": {"turn_detection": {"type": "server_vad"}}}}
EVENTS: Final[dict[str, Event]] = {
    "semantic": update(**SEMANTIC),
    "server": update(**SERVER),
    "manual": update(audio={"input": {"turn_detection": None}}),
    "instructions": update(instructions="Sing."),
    "text": update(output_modalities=["text"]),
    "few tokens": update(max_output_tokens=5),
    "item": message(),
    "system item": message(role="system"),
    "create": {"type": "response.create"},
    "create beside": {"type": "response.create", "response": {"conversation": "none"}},
    "cancel": {"type": "response.cancel"},
    "commit": {"type": "input_audio_buffer.commit"},
    "clear": {"type": "input_audio_buffer.clear"},
}
WORKER: Final = ("listens", "speaks", "ends", "is full", "leaves", "slot")
USER: Final = ("silence", "speech", "muted", "others wait", "truncate", "delete", "adapter dies")


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.sampled_from([*EVENTS, *WORKER, *WORKER, *USER, *USER]), max_size=40))
def test_no_order_of_events_breaks_a_session(steps: list[str]) -> None:
    session = NativeConversation(is_ready=False)
    for step in steps:
        if session.closed is not None:
            break
        if step in EVENTS:
            session.client(EVENTS[step])
        elif step in WORKER:
            work(session, step)
        else:
            use(session, step)
        session.now += 0.2
    if session.closed is None:
        finish(session)
        kinds = [event["type"] for event in session.sent]
        assert kinds.count("response.created") == kinds.count("response.done")


def work(session: NativeConversation, step: str) -> None:
    """The worker does that, if it has anything to do."""
    if step == "slot":
        session.settle()
    elif step == "leaves" and session.has_slot and session.dialect._answers.slot.setup is not None:
        session.worker(GoingAway(30.0))
    elif session.is_asked and session.dialect._answers._running is not None:
        session.say("Seven.", 0.5) if step == "speaks" else session.finish()
    elif session.is_asked:
        session.finish(UnitEnd.CANCELLED)
    elif session.unanswered:
        unit = session.unanswered[0]
        is_muted = unit.force_listen or unit.unit <= max(session.cancelled, default=0)
        ends = {"speaks": UnitEnd.CHUNK, "ends": UnitEnd.TURN, "is full": UnitEnd.CONTEXT_FULL}
        end = UnitEnd.LISTEN if is_muted else ends.get(step, UnitEnd.LISTEN)
        session.answer_unit(end, "" if end is UnitEnd.LISTEN else " Seven.")


def use(session: NativeConversation, step: str) -> None:
    """The user, or the client, does that."""
    items = [event["item"]["id"] for event in session.sent if event["type"] == "conversation.item.added"]
    if step == "adapter dies":
        session.move()
    elif step in ("silence", "speech"):
        session.detect(0.9 if step == "speech" else 0.0, 0.7)
    elif step in ("muted", "others wait"):
        session.wait(3.0 if step == "muted" else 70.0, others_wait=step == "others wait")
    elif items and step == "truncate":
        session.client(truncate(items[-1], 100))
    elif items:
        session.client({"type": "conversation.item.delete", "item_id": items[-1]})


def finish(session: NativeConversation) -> None:
    """The model says all, and the worker what it has."""
    session.client(update(audio={"input": {"turn_detection": None}}))
    for _ in range(40):
        session.settle()
        work(session, "ends")
