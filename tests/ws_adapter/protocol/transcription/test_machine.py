"""Transcription under any order of events, against a small model of its state table."""

from dataclasses import dataclass, field

import numpy as np
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
from tests.support.schemas import Event
from tests.ws_adapter.support.tokens import tokens
from tests.ws_adapter.support.transcription_conversation import (
    COMMIT,
    FINAL,
    UPDATE,
    TranscriptionConversation,
    append,
)
from ws_adapter.protocol.core.signals import Failed, Finalized, GoingAway, Piece, UnitDone, UnitEnd
from ws_adapter.protocol.wire.errors import VERDICTS

WINDOW = 3
RATE = 16_000
SAMPLES = 4_000
"""Of each append; each is of another level."""

BUFFER_S = 10.0
IDLE_S = 30.0


@dataclass(eq=False)
class Said:
    """An utterance that was committed: the levels of its appends."""

    levels: list[int] = field(default_factory=list)
    is_ended: bool = False


class TranscriptionMachine(RuleBasedStateMachine):
    """A client that says anything, workers that fail, and a queue that refuses.

    `expected` are the utterances that are not over; the first is the one that may be heard.
    """

    def __init__(self) -> None:
        super().__init__()
        self.talk = TranscriptionConversation(transcription_buffer_s=BUFFER_S)
        self.has_model = False
        self.is_skipping = False
        self.kept: list[int] = []
        self.expected: list[Said] = []
        self.last = Said()
        self.hearing: Said | None = None
        self.heard: list[int] = []
        self.first_unit = 0
        self.level = 0
        self.read = 1
        self.seen = 0
        self.text = ""
        self.sampled = 0
        self.done = 0
        self.touched_at = self.talk.now
        self.outcomes = 0
        self.committed = 0

    @property
    def open(self) -> Said | None:
        return self.expected[-1] if self.expected and not self.expected[-1].is_ended else None

    @rule()
    def update(self) -> None:
        self.has_model = True
        self.talk.client(UPDATE)

    @rule(count=st.sampled_from([1, 1, 3, 8]))
    def append(self, count: int) -> None:
        for _ in range(count):
            self.level += 1
            target = self.open.levels if self.open is not None else self.kept
            held = self.talk.dialect.held_bytes
            told = self.talk.client(append(SAMPLES / RATE, self.level))
            self.touched_at = self.talk.now
            if self.talk.dialect.held_bytes > held:
                target.append(self.level)
                assert told == []
            elif not self.is_skipping:
                assert held + 2 * SAMPLES > BUFFER_S * RATE * 2
                assert {event["code"] for event in told} <= {"buffer_full"}
                self.read += len(told)
            self.catch_up()

    @rule(is_final=st.booleans())
    def commit(self, is_final: bool) -> None:
        if not self.has_model:
            told = self.talk.client(FINAL if is_final else COMMIT)
            assert {event["code"] for event in told} <= {"model_not_validated"}, "not sent in a flood"
            self.read += len(told)
            return
        if self.open is not None:
            self.open.is_ended = is_final
            is_effective = is_final
        elif is_effective := not is_final or bool(self.kept):
            self.expected.append(Said(self.kept, is_final))
            self.committed += 1
            self.kept = []
        if is_effective:
            self.touched_at = self.talk.now
        self.is_skipping = False
        self.talk.client(FINAL if is_final else COMMIT)
        self.catch_up()

    @rule(frame=st.sampled_from([b"x", b"[]", b"{}", b'{"type":"session.update"}']))
    def nonsense(self, frame: bytes) -> None:
        told = self.talk.client(frame)
        assert all(event["type"] == "error" for event in told)
        self.read += len(told)

    @rule(is_congested=st.booleans())
    def congest(self, is_congested: bool) -> None:
        self.talk.do(self.talk.dialect.congested(is_congested, self.talk.now))
        self.catch_up()

    @precondition(lambda self: self.talk.slot == "wanted")
    @rule()
    def grant(self) -> None:
        self.touched_at = self.talk.now
        self.done = 0
        self.talk.serve(max_units_in_flight=WINDOW)
        self.catch_up()

    @precondition(lambda self: self.talk.slot == "wanted")
    @rule()
    def refuse(self) -> None:
        self.talk.slot = "none"
        self.talk.do(self.talk.dialect.refused(VERDICTS[Reason.QUEUE_FULL]))
        self.catch_up()

    @precondition(lambda self: self.talk.slot == "held" and self.done < len(self.talk.runs))
    @rule(text=st.sampled_from(["", "a", " word"]))
    def say(self, text: str) -> None:
        is_heard = self.is_current(self.done + 1)
        told = self.talk.worker(Piece(self.done + 1, text, b""))
        assert bool(told) == bool(is_heard and text)
        self.catch_up()

    @precondition(lambda self: self.talk.slot == "held" and self.done < len(self.talk.runs))
    @rule(end=st.sampled_from([UnitEnd.CHUNK] * 8 + [UnitEnd.FAILED, UnitEnd.CONTEXT_FULL]))
    def finish(self, end: UnitEnd) -> None:
        self.done += 1
        run = self.talk.runs[self.done - 1]
        if not self.is_current(run.unit):
            end = UnitEnd.CANCELLED
        elif run.ends and end is UnitEnd.CHUNK:
            end = UnitEnd.TURN
        self.sampled += end is not UnitEnd.CANCELLED
        failure = Reason.INFERENCE_FAILED if end is UnitEnd.FAILED else None
        before = self.outcomes
        self.talk.worker(UnitDone(run.unit, end, 100, tokens(output_text=1), failure=failure))
        self.catch_up()
        is_over = end in (UnitEnd.TURN, UnitEnd.FAILED, UnitEnd.CONTEXT_FULL)
        assert self.outcomes >= before + is_over

    @precondition(lambda self: self.talk.slot == "held" and self.talk.finalized < self.done)
    @rule()
    def finalize(self) -> None:
        self.talk.worker(Finalized(self.talk.finalized + 1))
        self.catch_up()

    @precondition(lambda self: self.talk.slot == "held")
    @rule(really=st.integers(0, 4))
    def fail(self, really: int) -> None:
        if not really:
            self.talk.worker(Failed(Reason.WORKER_LOST))
            self.catch_up()

    @precondition(lambda self: self.talk.slot == "held" and not self.expected)
    @rule()
    def leave(self) -> None:
        assert self.talk.worker(GoingAway(20.0)) == []
        assert self.talk.slot == "none"

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 5.0, 31.0]), others_wait=st.booleans())
    def wait(self, seconds: float, others_wait: bool) -> None:
        self.talk.wait(0.0, others_wait)  # between two utterances the slot may go to who waits
        had_slot = self.talk.slot == "held"
        self.talk.wait(seconds, others_wait)
        is_late = self.talk.now >= self.touched_at + IDLE_S
        if is_late and had_slot and self.open is not None and len(self.expected) == 1:
            self.open.is_ended = True  # as by a final commit
        self.catch_up()

    def is_current(self, unit: int) -> bool:
        """Whether a unit is one of the utterance that is heard."""
        is_heard = self.hearing is not None and self.hearing in self.expected[:1]
        return is_heard and unit >= self.first_unit

    def catch_up(self) -> None:
        """Reads what the server has said and what the worker was given since."""
        while self.read < len(self.talk.sent):
            self.read += 1
            self.hear(self.talk.sent[self.read - 1])
        for run in self.talk.heard[self.seen :]:
            current = self.expected[0]
            if run.begins:
                self.hearing, self.heard, self.first_unit = current, [], run.unit
            assert self.hearing is current
            pcm = np.frombuffer(run.audio, "<f4")[::SAMPLES] * 32768
            self.heard += [int(level) for level in pcm]
            assert self.heard == current.levels[: len(self.heard)], "in order, nothing lost, nothing twice"
            if run.ends:
                assert current.is_ended
                assert self.heard == current.levels
        self.seen = len(self.talk.heard)

    def hear(self, event: Event) -> None:
        """One event about an utterance."""
        match event:
            case {"type": "transcription.delta", "delta": text}:
                self.text += text
            case {"type": "transcription.done", "text": text, "usage": usage}:
                assert text == self.text
                assert usage["completion_tokens"] == self.sampled
                self.end_current()
                if not self.last.levels:
                    assert (usage["prompt_tokens"], text) == (0, "")
            case {"code": "idle_timeout"}:
                assert self.last.is_ended
            case {"code": "context_full"}:
                self.is_skipping = not self.last.is_ended
            case {"code": "processing_error"}:
                self.end_current()
                self.is_skipping = not self.last.is_ended
            case {"code": "queue_full"}:
                self.end_current()
                self.outcomes -= 1
                if self.expected:
                    self.expected[0].levels[:0] = self.last.levels
                    self.committed -= 1
                else:
                    self.kept[:0] = self.last.levels
                    self.committed -= 1
            case _:
                raise AssertionError(event)

    def end_current(self) -> None:
        self.last = self.expected.pop(0)
        self.outcomes += 1
        self.text, self.sampled = "", 0

    @invariant()
    def one_outcome_for_each_utterance(self) -> None:
        assert self.outcomes + len(self.expected) == self.committed

    @invariant()
    def socket_stays_open(self) -> None:
        assert self.talk.closed is None

    @invariant()
    def window_is_kept(self) -> None:
        if self.talk.slot == "held":
            assert len(self.talk.runs) - self.talk.finalized <= WINDOW

    @invariant()
    def slot_is_wanted_for_an_utterance_only(self) -> None:
        if self.talk.slot == "wanted":
            assert self.expected
        if self.expected:
            assert self.talk.slot in ("wanted", "held")

    @invariant()
    def deadline_lies_ahead(self) -> None:
        """One that lies behind is met by one tick."""
        deadline = self.talk.dialect.deadline
        if deadline is not None and deadline < self.talk.now:
            self.wait(0.0, False)
            deadline = self.talk.dialect.deadline
            assert deadline is None or deadline > self.talk.now - 1e-9

    def teardown(self) -> None:
        """With a worker that does its work, whatever has its final commit is done."""
        self.congest(False)
        while self.expected and (self.expected[0].is_ended or self.open is None):
            self.wait(0.0, False)
            if self.talk.slot == "wanted":
                self.grant()
            elif self.talk.finalized < self.done:
                self.finalize()
            else:
                assert self.done < len(self.talk.runs), "nothing is left to do, and it is not done"
                self.finish(UnitEnd.CHUNK)
        if not self.expected:
            self.wait(60.0, False)
            assert self.talk.slot == "none"
            assert self.talk.dialect.deadline is None
        assert self.talk.dialect.held_bytes <= 2 * RATE * (BUFFER_S + WINDOW * 4)


def test_any_order_of_events() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        TranscriptionMachine,
        settings=settings(max_examples=examples(60), stateful_step_count=40, deadline=None),
    )
