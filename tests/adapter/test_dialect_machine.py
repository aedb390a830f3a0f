"""The dialect under any order of events, against a small model of what must always hold."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from antiphon.semconv import Reason
from tests.adapter.conversation import SPEECH, Conversation, Event, append, ready_signal
from ws_adapter.dialects.realtime import State
from ws_adapter.dialects.worker import Finalized, Piece, Tokens, UnitDone, UnitEnd

WINDOW = 2


class Client:
    """Reads events as a strict client would and complains about any breach of the emission rules."""

    def __init__(self) -> None:
        self.open_response: str | None = None
        self.closed_responses: set[str] = set()
        self.last_index = -1
        self.answered = 0
        self.errors = 0
        self.terminal = False
        self.silenced: set[str] = set()

    def read(self, event: Event) -> None:
        assert not self.terminal, f"{event} after the end"
        match event["type"]:
            case "session.closed":
                self.terminal = True
            case "error":
                self.errors += 1
            case "response.output.delta":
                self._delta(event)

    def _delta(self, event: Event) -> None:
        assert "server_send_ts" not in event, "the time of sending is filled in at sending"
        if "chunk_index" in event:
            assert event["chunk_index"] > self.last_index
            self.last_index = event["chunk_index"]
            self.answered += 1
        else:
            assert event["metrics"] == {}
        response = event.get("response_id")
        assert response not in self.closed_responses
        if event["kind"] == "listen":
            # A response that was taken back whole before it was sent is closed all the same.
            unseen = self.open_response is None and response in self.silenced
            assert response == self.open_response or unseen, "a listen closes the open response and names it"
            if response is not None:
                self.closed_responses.add(response)
            self.open_response = None
        else:
            assert response is not None
            assert response not in self.silenced, "nothing of a response follows its interruption"
            assert self.open_response in (None, response)
            self.open_response = response


def open_response(events: list[Event]) -> str | None:
    """The response that the last delta left open."""
    deltas = [event for event in events if event["type"] == "response.output.delta"]
    return deltas[-1].get("response_id") if deltas and deltas[-1]["kind"] != "listen" else None


class DialectMachine(RuleBasedStateMachine):
    """Clients, workers, time and interruptions in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.talk = Conversation(max_waiting_units=2, hold_output=True, session_limit_s=0.0)
        self.client = Client()
        self.read_up_to = 0
        self.done = 0
        self.finalized = 0
        self.failures = 0
        self.bad = 0

    def read_everything(self) -> None:
        """What was sent leaves the outbox and reaches the client."""
        for event in self.talk.sent[self.read_up_to :]:
            self.client.read(event)
        self.read_up_to = len(self.talk.sent)
        self.talk.flush_output()

    @initialize(begin=st.sampled_from(["queued", "with an init", "active", "active", "active"]))
    def open(self, begin: str) -> None:
        if begin == "active":
            self.talk.activate()
        elif begin == "with an init":
            self.talk.client({"type": "session.init", "payload": {}})

    @property
    def state(self) -> State:
        return self.talk.dialect.state

    # --------------------------------------------------------------------------------------- the client

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.5, 0.995, 1.0, 2.3, 9.0]), force=st.booleans())
    def append(self, seconds: float, force: bool) -> None:
        event = append(seconds, force_listen=force)
        self.bad += self.talk.dialect.setup is None or not (seconds or force)
        opened = open_response(self.talk.sent) if force and self.state is State.ACTIVE else None
        self.talk.client(event)
        if opened is not None:
            self.client.silenced.add(opened)

    @rule()
    def init(self) -> None:
        if self.state in (State.CONFIGURING, State.ACTIVE) or self.talk.dialect.setup is not None:
            self.bad += 1
        self.talk.client({"type": "session.init", "payload": {}})

    @rule(event=st.sampled_from([{}, [], {"type": "x"}, {"type": "input.append", "input": {"audio": "?"}}]))
    def nonsense(self, event: Any) -> None:
        self.bad += 1
        before = self.state
        self.talk.client(event)
        assert self.state in (before, State.CLOSING)

    @precondition(lambda self: self.state is State.ACTIVE)
    @rule(really=st.integers(0, 9))
    def close(self, really: int) -> None:
        if not really:
            self.talk.client({"type": "session.close"})

    @precondition(lambda self: self.state is State.ACTIVE and self.done == len(self.talk.runs))
    @rule(read=st.booleans(), late=st.booleans())
    def interrupt_a_speaker(self, read: bool, late: bool) -> None:
        """The model speaks, with a unit in flight behind the one that it speaks in."""
        self.append(2.0, False)
        if self.done < len(self.talk.runs):
            self.finish(UnitEnd.CHUNK)
        if read:
            self.read_everything()
        if late and self.done < len(self.talk.runs):
            self.talk.worker(Piece(self.done + 1, "word", SPEECH))
        self.append(0.0, True)
        if self.done < len(self.talk.runs):
            self.finish(UnitEnd.CHUNK)

    @rule()
    def read(self) -> None:
        self.read_everything()

    @rule(is_congested=st.booleans())
    def congest(self, is_congested: bool) -> None:
        self.talk.do(self.talk.dialect.congested(is_congested, self.talk.now))

    # --------------------------------------------------------------------------------- worker and server

    @precondition(lambda self: self.state is State.QUEUED)
    @rule()
    def grant(self) -> None:
        self.talk.connect()

    @precondition(lambda self: self.state is State.CONFIGURING)
    @rule()
    def ready(self) -> None:
        self.talk.worker(ready_signal(max_units_in_flight=WINDOW))

    @precondition(lambda self: self.done < len(self.talk.runs))
    @rule(end=st.sampled_from([*UnitEnd] * 2 + [UnitEnd.CHUNK] * 12 + [UnitEnd.LISTEN] * 6))
    def finish(self, end: UnitEnd) -> None:
        if end is UnitEnd.CONTEXT_FULL:
            end = UnitEnd.LISTEN
        self.done += 1
        run = self.talk.runs[self.done - 1]
        if run.force_listen:
            end = UnitEnd.LISTEN
        if end in (UnitEnd.CHUNK, UnitEnd.TURN):
            self.talk.worker(Piece(self.done, "word", SPEECH))
        failure = Reason.INFERENCE_FAILED if end is UnitEnd.FAILED else None
        self.bad += failure is not None
        self.talk.worker(UnitDone(self.done, end, 100, Tokens(1), failure=failure))

    @precondition(lambda self: self.finalized < self.done)
    @rule()
    def finalize(self) -> None:
        self.finalized += 1
        self.talk.worker(Finalized(self.finalized))

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.25, 3.5]), others_wait=st.booleans())
    def wait(self, seconds: float, others_wait: bool) -> None:
        self.talk.wait(seconds, others_wait)

    # ----------------------------------------------------------------------------------------- always

    @invariant()
    def window_is_kept(self) -> None:
        assert len(self.talk.runs) - self.finalized <= WINDOW
        assert [run.unit for run in self.talk.runs] == list(range(1, len(self.talk.runs) + 1))

    @invariant()
    def nothing_follows_the_end(self) -> None:
        assert self.talk.after_close == []
        if self.talk.closed is not None:
            assert self.state is State.CLOSING

    @invariant()
    def deadline_lies_ahead(self) -> None:
        deadline = self.talk.dialect.deadline
        assert deadline is None or deadline > self.talk.now - 1e-9 or self._due()

    def _due(self) -> bool:
        """A deadline that lies behind is met by one tick."""
        self.talk.wait(0)
        deadline = self.talk.dialect.deadline
        return deadline is None or deadline > self.talk.now - 1e-9

    def teardown(self) -> None:
        if self.state is State.ACTIVE:
            self._drain()
        self.read_everything()
        assert self.client.errors <= self.bad + 1

    def _drain(self) -> None:
        """Once the worker has listened through everything, every unit is answered and no response is open."""
        self.talk.do(self.talk.dialect.congested(False, self.talk.now))
        while self.state is State.ACTIVE and self.finalized < len(self.talk.runs):
            if self.finalized == self.done:
                self.finish(UnitEnd.LISTEN)
            self.finalize()
        self.read_everything()
        if self.state is State.ACTIVE and self.done:
            assert self.client.answered >= self.done


TestDialect = DialectMachine.TestCase
TestDialect.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
