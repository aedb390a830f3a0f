"""The dialects under any order of events, against a small model of what must always hold."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from antiphon.contract import Reason
from tests.support.long import examples
from tests.ws_adapter.support.conversation import SPEECH, Conversation, Event, pcm, ready_signal
from tests.ws_adapter.support.duplex_conversation import DuplexConversation
from tests.ws_adapter.support.tokens import tokens
from ws_adapter.protocol.core.signals import Finalized, Piece, UnitDone, UnitEnd
from ws_adapter.protocol.core.state import State

WINDOW = 2


class Client(ABC):
    """Reads events as a strict client would and complains about any breach of the emission rules."""

    last_event = ("session.closed",)

    def __init__(self) -> None:
        self.answered = 0
        self.errors = 0
        self.terminal = False

    def read(self, event: Event) -> None:
        assert not self.terminal, f"{event} after the end"
        assert "server_send_ts" not in event or not event["server_send_ts"], "it is filled in at sending"
        if event["type"] in self.last_event:
            self.terminal = True
        elif event["type"] == "error":
            self.errors += 1
        else:
            self.answer(event)

    @abstractmethod
    def answer(self, event: Event) -> None:
        """Read an event that is neither an error nor the end."""

    @abstractmethod
    def open_response(self, events: list[Event]) -> str | None:
        """Return the name of the response that the last answer left open, or None."""

    @abstractmethod
    def silence(self, response: str) -> None:
        """Forbid further events of `response`."""


class Responses(Client):
    """Of dialects whose responses have ids."""

    def __init__(self) -> None:
        super().__init__()
        self.current: str | None = None
        self.closed: set[str] = set()
        self.silenced: set[str] = set()

    def silence(self, response: str) -> None:
        self.silenced.add(response)

    def heard_listen(self, response: str | None) -> None:
        assert response not in self.closed
        # A response that was taken back whole before it was sent is closed all the same.
        unseen = self.current is None and response in self.silenced
        assert response == self.current or unseen, "a listen closes the open response and names it"
        if response is not None:
            self.closed.add(response)
        self.current = None

    def heard_speech(self, response: str | None) -> None:
        assert response is not None
        assert response not in self.closed
        assert response not in self.silenced, "nothing of a response follows its interruption"
        assert self.current in (None, response)
        self.current = response


class CurrentClient(Responses):
    """Of the current dialect."""

    def __init__(self) -> None:
        super().__init__()
        self.last_index = -1
        self.metrics: Event = {}

    def answer(self, event: Event) -> None:
        if event["type"] != "response.output.delta":
            return
        if "chunk_index" in event:
            assert event["chunk_index"] > self.last_index
            self.last_index = event["chunk_index"]
            self.metrics = event["metrics"]
            self.answered += 1
        else:
            assert event["metrics"] == self.metrics, "all events of a unit have the same figures"
        heard = self.heard_listen if event["kind"] == "listen" else self.heard_speech
        heard(event.get("response_id"))

    def open_response(self, events: list[Event]) -> str | None:
        deltas = [event for event in events if event["type"] == "response.output.delta"]
        return deltas[-1].get("response_id") if deltas and deltas[-1]["kind"] != "listen" else None


class EarlierClient(Responses):
    """Of the earlier dialect: one event for each unit."""

    def answer(self, event: Event) -> None:
        match event["type"]:
            case "response.listen":
                self.answered += 1
                self.heard_listen(event.get("response_id"))
            case "response.output_audio.delta":
                self.answered += 1
                self.heard_speech(event["response_id"])
                if event["end_of_turn"]:
                    self.heard_listen(event["response_id"])

    def open_response(self, events: list[Event]) -> str | None:
        answers = [event for event in events if event["type"].startswith("response.")]
        last = answers[-1] if answers else {}
        return None if last.get("end_of_turn", True) else last["response_id"]


class DuplexClient(Client):
    """Of `/ws/duplex`: one result for each unit, without ids."""

    last_event = ("stopped", "timeout")

    def __init__(self) -> None:
        super().__init__()
        self.last_time = 0
        self.is_silenced = False

    def answer(self, event: Event) -> None:
        if event["type"] != "result":
            return
        self.answered += 1
        assert event["current_time"] > self.last_time
        self.last_time = event["current_time"]
        if event["is_listen"]:
            self.is_silenced = False
            assert event["text"] == ""
            assert event["audio_data"] is None
            assert not event["end_of_turn"]
        else:
            assert not self.is_silenced, "nothing of a response follows its interruption"

    def open_response(self, events: list[Event]) -> str | None:
        results = [event for event in events if event["type"] == "result"]
        speaks = results and not results[-1]["is_listen"] and not results[-1]["end_of_turn"]
        return "it" if speaks else None

    def silence(self, response: str) -> None:
        self.is_silenced = True


class DialectMachine(RuleBasedStateMachine):
    """Clients, workers, time and interruptions in any order; in the current dialect."""

    shape: type[Conversation] = Conversation
    client_shape: type[Client] = CurrentClient
    init_event: ClassVar[Event] = {"type": "session.init", "payload": {}}
    close_event: ClassVar[Event] = {"type": "session.close"}

    def __init__(self) -> None:
        super().__init__()
        self.talk = self.shape(max_waiting_units=2, hold_output=True, session_limit_s=0.0)
        self.client = self.client_shape()
        self.read_up_to = 0
        self.done = 0
        self.finalized = 0
        self.failures = 0
        self.bad = 0

    def read_everything(self) -> None:
        """Pass all sent events to the client and empty the outbox."""
        for event in self.talk.sent[self.read_up_to :]:
            self.client.read(event)
        self.read_up_to = len(self.talk.sent)
        self.talk.flush_output()

    @initialize(begin=st.sampled_from(["queued", "with an init", "active", "active", "active"]))
    def open(self, begin: str) -> None:
        if begin == "active":
            self.talk.connect()
            self.talk.client(self.init_event)
            self.ready()
        elif begin == "with an init":
            self.talk.client(self.init_event)

    def append_event(self, audio: str, force_listen: bool) -> Event:
        return {"type": "input.append", "input": {"audio": audio, "force_listen": force_listen}}

    @property
    def state(self) -> State:
        return self.talk.dialect.state

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.5, 0.995, 1.0, 2.3, 9.0]), force=st.booleans())
    def append(self, seconds: float, force: bool) -> None:
        refused = self.talk.dialect.setup is None or self.state is State.PAUSED
        self.bad += refused or not (seconds or force)
        opened = self.client.open_response(self.talk.sent) if force and self.state is State.ACTIVE else None
        self.talk.client(self.append_event(pcm(seconds), force))
        if opened is not None:
            self.client.silence(opened)

    @rule()
    def init(self) -> None:
        self.bad += self.talk.dialect.setup is not None
        self.talk.client(self.init_event)

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
            self.talk.client(self.close_event)

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
        self.talk.worker(UnitDone(self.done, end, 100, tokens(1), failure=failure))

    @precondition(lambda self: self.finalized < self.done)
    @rule()
    def finalize(self) -> None:
        self.finalized += 1
        self.talk.worker(Finalized(self.finalized))

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.25, 3.5]), others_wait=st.booleans())
    def wait(self, seconds: float, others_wait: bool) -> None:
        self.talk.wait(seconds, others_wait)

    @invariant()
    def window_is_kept(self) -> None:
        assert len(self.talk.runs) - self.finalized <= WINDOW
        assert [run.unit for run in self.talk.runs] == list(range(1, len(self.talk.runs) + 1))

    @invariant()
    def nothing_follows_the_end(self) -> None:
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
        if self.is_running:
            self._drain()
        self.read_everything()
        assert self.client.errors <= self.bad + 1

    @property
    def is_running(self) -> bool:
        return self.state in (State.ACTIVE, State.PAUSED)

    def _drain(self) -> None:
        """Once the worker has listened through everything, every unit is answered and no response is open."""
        self.talk.do(self.talk.dialect.congested(False, self.talk.now))
        while self.is_running and self.finalized < len(self.talk.runs):
            if self.finalized == self.done:
                self.finish(UnitEnd.LISTEN)
            self.finalize()
        self.read_everything()
        if self.is_running and self.done:
            assert self.client.answered >= self.done


class EarlierMachine(DialectMachine):
    """The same in the earlier dialect."""

    client_shape = EarlierClient
    init_event: ClassVar[Event] = {"type": "session.update", "session": {"instructions": "Answer briefly."}}

    def append_event(self, audio: str, force_listen: bool) -> Event:
        return {"type": "input_audio_buffer.append", "audio": audio, "force_listen": force_listen}


class DuplexMachine(DialectMachine):
    """The same on `/ws/duplex`, with breaks."""

    shape = DuplexConversation
    client_shape = DuplexClient
    init_event: ClassVar[Event] = {"type": "prepare"}
    close_event: ClassVar[Event] = {"type": "stop"}

    def append_event(self, audio: str, force_listen: bool) -> Event:
        return {"type": "audio_chunk", "audio_base64": audio, "force_listen": force_listen}

    @rule(name=st.sampled_from(["pause", "pause", "resume", "resume", "interrupt"]))
    def steer(self, name: str) -> None:
        self.bad += not self.is_running
        told = self.talk.client({"type": name})
        expected = {"pause": "paused", "resume": "resumed", "interrupt": "interrupted"}[name]
        if self.is_running:
            assert [event["type"] for event in told] == [expected]
            assert (self.state is State.PAUSED) == (name == "pause") or name == "interrupt"

    @rule()
    def diagnose(self) -> None:
        assert self.talk.client({"type": "client_diagnostic", "drift_ms": 12}) == []


@pytest.mark.parametrize("machine", [DialectMachine, EarlierMachine, DuplexMachine])
def test_any_order_of_events(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
    )
