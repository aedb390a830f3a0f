"""Both chats under any order of events, against a small model of what must always hold."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from antiphon.contract import Reason
from tests.support.long import examples
from tests.ws_adapter.support.chat_conversation import (
    SPOKEN,
    USER,
    ChatJar,
    Jar,
    RealtimeChatJar,
    append,
    request,
)
from tests.ws_adapter.support.conversation import CLOSE, Event, ready_signal
from ws_adapter.protocol.chat.realtime_chat import MOST_WAITING
from ws_adapter.protocol.core.signals import Finish, GoingAway, UnitEnd
from ws_adapter.protocol.wire import errors

FIELDS = st.fixed_dictionaries(
    {"messages": st.sampled_from([[USER], []])},
    optional={"streaming": st.booleans(), "tts": st.fixed_dictionaries({"enabled": st.booleans()})},
)


class Worker:
    """A model of the session's worker: gives slots, configures, and runs one turn in each slot."""

    def __init__(self, jar: Jar) -> None:
        self._jar = jar
        self._slots = 0
        self._opened = 0
        self._runs = 0
        self.is_wanted = False
        self.is_attached = False
        self.is_configured = False
        self.is_ready = False
        self.is_running = False

    def look(self) -> None:
        """Reads what was asked of it; nothing may be asked in the wrong order."""
        for asked in self._jar.slots[self._slots :]:
            if asked == "take":
                assert not self.is_wanted
                assert not self.is_attached, "one slot at a time"
                self.is_wanted = True
            else:
                assert self.is_wanted or self.is_attached, "there is nothing to give back"
                self.forget()
        self._slots = len(self._jar.slots)
        if len(self._jar.configured) > self._opened:
            assert len(self._jar.configured) == self._opened + 1
            assert self.is_attached or self._jar.closed is not None
            self._opened, self.is_configured = len(self._jar.configured), self.is_attached
        if len(self._jar.runs) > self._runs:
            assert len(self._jar.runs) == self._runs + 1
            assert self.is_ready
            assert not self.is_running, "one turn in each slot"
            self._runs, self.is_running = len(self._jar.runs), True
        if self._jar.closed is not None:
            self.forget()

    def forget(self) -> None:
        self.is_wanted = self.is_attached = self.is_configured = self.is_ready = self.is_running = False


class Chatting(RuleBasedStateMachine):
    """Rules of both; `jar` is that of the dialect."""

    jar: Jar

    def __init__(self) -> None:
        super().__init__()
        self.worker = Worker(self.jar)
        self.prefilled = False
        self.answers = 0
        self.worker.look()

    def seen(self, events: list[Event]) -> None:
        self.worker.look()
        for event in events:
            if event["type"] in ("done", "response.done"):
                self.answers += 1
        if not self.worker.is_running:
            self.prefilled = False

    @precondition(lambda self: self.worker.is_wanted)
    @rule(position=st.integers(1, 3))
    def wait_in_the_queue(self, position: int) -> None:
        self.seen(self.jar.queue(position, position))

    @precondition(lambda self: self.worker.is_wanted)
    @rule()
    def grant(self) -> None:
        self.worker.is_wanted, self.worker.is_attached = False, True
        self.seen(self.jar.grant())

    @precondition(lambda self: self.worker.is_wanted)
    @rule(verdict=st.sampled_from([errors.NO_WORKER, errors.QUEUE_CANCELLED, errors.QUEUE_TIMEOUT]))
    def refuse(self, verdict: errors.Verdict) -> None:
        self.worker.is_wanted = False
        self.seen(self.jar.do(self.jar.machine.refused(verdict)))
        assert self.jar.closed is not None

    @precondition(lambda self: self.worker.is_configured and not self.worker.is_ready)
    @rule()
    def displace(self) -> None:
        self.worker.forget()
        self.worker.is_wanted = True
        self.jar.machine.displaced()

    @precondition(lambda self: self.worker.is_configured and not self.worker.is_ready)
    @rule(speaks=st.booleans())
    def ready(self, speaks: bool) -> None:
        self.worker.is_ready = True
        self.seen(self.jar.worker(ready_signal(speaks=speaks)))

    @precondition(lambda self: self.worker.is_running and not self.prefilled)
    @rule()
    def prefill(self) -> None:
        self.prefilled = True
        self.seen(self.jar.prefilled())

    @precondition(lambda self: self.prefilled)
    @rule(text=st.sampled_from(["", "Seven"]), audio=st.sampled_from([b"", SPOKEN]))
    def say(self, text: str, audio: bytes) -> None:
        self.seen(self.jar.say(text, audio))

    @precondition(lambda self: self.worker.is_running)
    @rule(
        end=st.sampled_from([UnitEnd.TURN, UnitEnd.FAILED, UnitEnd.CANCELLED, UnitEnd.CONTEXT_FULL]),
        finish=st.sampled_from(list(Finish)),
        reason=st.sampled_from([Reason.INFERENCE_FAILED, Reason.INPUT_TOO_LONG]),
    )
    def done(self, end: UnitEnd, finish: Finish, reason: Reason) -> None:
        self.seen(self.jar.done(end, finish, failure=reason if end is UnitEnd.FAILED else None))
        assert not self.worker.is_running, "the slot goes back at the end of each turn"

    @precondition(lambda self: self.worker.is_attached)
    @rule(reason=st.sampled_from([Reason.KV_EXHAUSTED, Reason.UNIT_TIMEOUT, Reason.SESSION_LIMIT]))
    def fail(self, reason: Reason) -> None:
        if self.worker.is_configured:
            self.seen(self.jar.fail(reason))
            assert not self.worker.is_attached

    @precondition(lambda self: self.worker.is_ready)
    @rule()
    def go_away(self) -> None:
        self.seen(self.jar.worker(GoingAway(5.0)))

    @rule(frame=st.sampled_from([b"{", b"[]", b'{"type":7}', b'{"type":"what"}', b"\xff"]))
    def send_nonsense(self, frame: bytes) -> None:
        self.seen(self.jar.client(frame))

    @rule(seconds=st.sampled_from([0.1, 1.0, 21.0, 601.0]))
    def pass_time(self, seconds: float) -> None:
        self.seen(self.jar.wait(seconds))

    @rule(is_congested=st.booleans())
    def congest(self, is_congested: bool) -> None:
        self.seen(self.jar.do(self.jar.machine.congested(is_congested, self.jar.now)))

    @invariant()
    def nothing_follows_the_end(self) -> None:
        assert self.jar.machine.is_over == (self.jar.closed is not None)

    @invariant()
    def an_event_precedes_the_close(self) -> None:
        if self.jar.closed is not None and self.jar.closed.code != 1007:
            assert self.jar.sent[-1]["type"] in ("error", "done", "session.closed")

    @invariant()
    def bytes_are_given_back(self) -> None:
        assert self.jar.machine.held_bytes >= 0

    def teardown(self) -> None:
        before = len(self.jar.sent)
        self.jar.machine.disconnected()
        assert self.jar.machine.deadline is None
        assert self.jar.client(b"{}") == []
        assert len(self.jar.sent) == before


class OneRequest(Chatting):
    """`/ws/chat`."""

    def __init__(self) -> None:
        self.jar = ChatJar()
        super().__init__()

    @rule(fields=FIELDS)
    def ask(self, fields: Event) -> None:
        self.seen(self.jar.client(fields))

    @invariant()
    def one_answer_at_most(self) -> None:
        assert self.answers <= 1
        kinds = [event["type"] for event in self.jar.sent]
        assert kinds.count("prefill_done") <= 1
        if "chunk" in kinds:
            assert kinds.index("prefill_done") < kinds.index("chunk")
        if "done" in kinds:
            text = "".join(event["text_delta"] for event in self.jar.sent if event["type"] == "chunk")
            assert self.jar.sent[-1]["text"] == text or not any(k == "chunk" for k in kinds)


class ManyTurns(Chatting):
    """`/v1/realtime?mode=chat`."""

    def __init__(self) -> None:
        self.jar = RealtimeChatJar()
        self.accepted = 0
        super().__init__()

    @rule(payload=st.sampled_from([{}, {"seed": -1}, {"system_prompt": "Be brief."}]))
    def init(self, payload: Event) -> None:
        self.seen(self.jar.client({"type": "session.init", "payload": payload}))

    @rule(fields=FIELDS)
    def ask(self, fields: Event) -> None:
        self.send({"type": "input.append", "input": fields})

    @rule(event=st.sampled_from([CLOSE, {"type": "session.update"}, append(), request()]))
    def send(self, event: Event) -> None:
        is_over = self.jar.machine.is_over
        told = self.jar.client(event)
        is_turn = event.get("type") == "input.append"
        self.accepted += is_turn and not is_over and not any(event["type"] == "error" for event in told)
        self.seen(told)

    @invariant()
    def every_turn_is_answered_once(self) -> None:
        open_turns = self.accepted - self.answers
        assert 0 <= open_turns <= MOST_WAITING + 1
        ids = [event["response_id"] for event in self.jar.sent if event["type"] == "response.done"]
        assert len(ids) == len(set(ids))

    @invariant()
    def deltas_belong_to_one_response_and_make_its_text(self) -> None:
        current, text = None, ""
        for event in self.jar.sent:
            if event["type"] == "response.output.delta":
                assert current in (None, event["response_id"])
                current, text = event["response_id"], text + event.get("text", "")
            elif event["type"] == "response.done":
                assert current in (None, event["response_id"])
                assert not text or event["text"] == text
                current, text = None, ""


@pytest.mark.parametrize("machine", [OneRequest, ManyTurns])
def test_any_order_of_events(machine: type[Chatting]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples(50), stateful_step_count=30, deadline=None)
    )
