"""Any order of requests, engine steps, time and faults against a small model of a session."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antiphon.contract import Reason
from inference_service.errors import Cancelled, StreamExists
from inference_service.interface.engine import (
    Closed,
    Done,
    End,
    Failure,
    Finalized,
    Prefilled,
    Ready,
    SessionFailed,
)
from inference_service.session.machine import GoAway, Limits
from inference_service.session.units import Generate, Stream
from tests.inference_service.support.session_world import INPUT, SETUP, Stage
from tests.support.long import examples

WINDOW = 3
LIMITS = Limits(window=WINDOW)
REFUSAL = Failure(Reason.AUDIO_INVALID, "duplex.audio.data must be finite.", "duplex.audio.data")
BAD_RUN = Generate(
    refusal=Failure(Reason.PARAMS_INVALID, "run.sampling.top_p is wrong.", "run.sampling.top_p")
)


class SessionMachine(RuleBasedStateMachine):
    """A caller that mostly keeps the rules, an engine that takes its time, and a little bad luck."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(LIMITS)
        self.asked = dict.fromkeys(Stream, 0)
        self.attached: set[Stream] = set()
        self.closed: set[Stream] = set()
        self.configured = False
        self.ready = False
        self.broken = False
        self.refused: set[int] = set()
        self.unparsed: set[int] = set()
        self.cancelled = 0

    @property
    def session(self) -> Any:
        return self.stage.session

    @property
    def finalised(self) -> int:
        return len(self.stage.answers(Stream.FINALIZE))

    def may_ask(self, stream: Stream) -> bool:
        """Whether the next unit on `stream` keeps the rules."""
        unit = self.asked[stream] + 1
        if stream in self.closed or self.session.is_over or not self.session.is_attached:
            return False
        if Stream.PREFILL in self.closed and unit > self.asked[Stream.PREFILL]:
            return False
        if stream is Stream.PREFILL and any(
            other in self.closed and self.asked[other] < unit for other in (Stream.GENERATE, Stream.FINALIZE)
        ):
            return False
        return self.configured and unit <= self.finalised + WINDOW

    def ask(self, stream: Stream, *content: Any) -> None:
        self.asked[stream] += 1
        self.stage.call(stream.value.lower(), self.asked[stream], *content, self.stage.now)

    @rule(stream=st.sampled_from(Stream))
    def attach(self, stream: Stream) -> None:
        is_new = stream not in self.attached and not self.session.is_over
        try:
            self.session.attach(stream, self.stage.now)
        except StreamExists:
            assert not is_new
        else:
            assert is_new
            self.attached.add(stream)

    @precondition(lambda self: self.session.is_attached and not self.configured and not self.session.is_over)
    @rule()
    def configure(self) -> None:
        self.configured = True
        self.stage.call("expect_config", 0)
        self.session.open(SETUP, self.stage.now, idle_timeout_s=60, max_duration_s=600)

    @precondition(lambda self: self.may_ask(Stream.PREFILL))
    @rule(is_refused=st.booleans())
    def prefill(self, is_refused: bool) -> None:
        if is_refused:
            self.refused.add(self.asked[Stream.PREFILL] + 1)
        self.ask(Stream.PREFILL, REFUSAL if is_refused else INPUT)

    @precondition(lambda self: self.may_ask(Stream.GENERATE))
    @rule(is_unparsed=st.booleans())
    def generate(self, is_unparsed: bool) -> None:
        if is_unparsed:
            self.unparsed.add(self.asked[Stream.GENERATE] + 1)
        self.ask(Stream.GENERATE, BAD_RUN if is_unparsed else Generate())

    @precondition(lambda self: self.may_ask(Stream.FINALIZE))
    @rule()
    def finalize(self) -> None:
        self.ask(Stream.FINALIZE)

    @rule(ahead=st.integers(0, 2))
    def cancel(self, ahead: int) -> None:
        unit = self.asked[Stream.PREFILL] + ahead
        if unit >= 1:
            self.cancelled = max(self.cancelled, unit)
            self.stage.call("cancel", unit)

    @precondition(
        lambda self: (
            self.configured
            and not self.session.is_over
            and self.asked[Stream.PREFILL] >= max(self.asked.values())
        )
    )
    @rule()
    def half_close_prefill(self) -> None:
        self.closed.add(Stream.PREFILL)
        self.stage.call("half_close", Stream.PREFILL, self.stage.now)

    @precondition(lambda self: self.configured and not self.session.is_over)
    @rule(stream=st.sampled_from([Stream.GENERATE, Stream.FINALIZE]))
    def half_close_when_asked(self, stream: Stream) -> None:
        if self.asked[stream] >= self.asked[Stream.PREFILL]:
            self.closed.add(stream)
            self.stage.call("half_close", stream, self.stage.now)

    @precondition(lambda self: self.session.is_attached)
    @rule(stream=st.sampled_from(Stream), unit=st.sampled_from([0, 1, 2, 40, 2**63]))
    def break_the_order(self, stream: Stream, unit: int) -> None:
        if unit == self.asked[stream] + 1:
            return
        content = {Stream.PREFILL: (INPUT,), Stream.GENERATE: (Generate(),), Stream.FINALIZE: ()}[stream]
        was_over = self.session.is_over
        self.broken = self.broken or not was_over
        self.stage.call(stream.value.lower(), unit, *content, self.stage.now)

    @rule()
    def lose_a_stream(self) -> None:
        self.broken = self.broken or not self.session.is_over
        self.session.fail(Cancelled("gone"), self.stage.now)

    @precondition(lambda self: self.configured and not self.session.is_over)
    @rule()
    def engine_gives_up(self) -> None:
        self.broken = True
        self.stage.event(SessionFailed(Reason.KV_EXHAUSTED, "full"))

    @precondition(lambda self: self.configured and not self.ready and not self.session.is_over)
    @rule()
    def engine_is_ready(self) -> None:
        self.ready = True
        self.stage.event(Ready(10))

    @precondition(lambda self: self.stage.engine.orders)
    @rule(end=st.sampled_from([End.LISTEN, End.CHUNK, End.TURN, End.FAILED, End.CONTEXT_FULL]))
    def engine_steps(self, end: End) -> None:
        self.stage.event(self.stage.engine.step(end))

    @precondition(lambda self: self.stage.engine.closes and "clean" not in self.stage.acts)
    @rule()
    def engine_cleans_up(self) -> None:
        self.stage.event(Closed())

    @rule()
    def go_away(self) -> None:
        self.session.go_away(GoAway(5.0, "draining"))

    @rule(seconds=st.sampled_from([0.0, 1.0, 11.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        was_over = self.session.is_over
        self.stage.wait(seconds)
        self.broken = self.broken or (self.session.is_over and not was_over)

    @invariant()
    def answers_come_in_order_and_once(self) -> None:
        for stream, kind in (
            (Stream.PREFILL, Prefilled),
            (Stream.GENERATE, Done),
            (Stream.FINALIZE, Finalized),
        ):
            units = [answer.unit for answer in self.stage.answers(stream) if isinstance(answer, kind)]
            assert units == list(range(1, len(units) + 1))
            assert len(units) <= self.asked[Stream.PREFILL]

    @invariant()
    def the_engine_is_asked_in_order_and_never_for_a_refused_unit(self) -> None:
        history = self.stage.engine.history
        steps = ("prefill", "generate", "finalize")
        served = [unit for unit in range(1, self.asked[Stream.PREFILL] + 1) if unit not in self.refused]
        assert history == [(step, unit) for unit in served for step in steps][: len(history)]

    @invariant()
    def ends_match_their_causes(self) -> None:
        for done in self.stage.answers(Stream.GENERATE):
            if isinstance(done, Done) and done.end is not End.CONTEXT_FULL:
                if done.unit in self.refused | self.unparsed:
                    assert done.end is End.FAILED
                    assert done.failure is not None
                elif done.end is End.CANCELLED:
                    assert done.unit <= self.cancelled

    @invariant()
    def the_end_comes_once_and_the_slot_is_cleaned_once(self) -> None:
        acts = [act for act in self.stage.acts if act != "open"]
        assert len(set(acts)) == len(acts)
        assert acts == [] or acts[0] == "cleaning"
        assert ("cleaning" in acts) == self.session.is_over
        assert self.stage.engine.closes <= 1

    @invariant()
    def an_end_without_a_fault_answers_every_accepted_unit(self) -> None:
        if "end" in self.stage.acts and self.stage.outcome is None:
            assert not self.broken
            heard = len([a for a in self.stage.answers(Stream.PREFILL) if isinstance(a, Prefilled)])
            decided = [a.end for a in self.stage.answers(Stream.GENERATE) if isinstance(a, Done)]
            assert heard == len(decided) == self.finalised
            assert End.CONTEXT_FULL in decided or heard == self.asked[Stream.PREFILL]
        if self.session.is_over:
            assert self.broken or self.stage.outcome is None

    def teardown(self) -> None:
        """Left alone, a session ends, and gives its slot back."""
        for _ in range(12):
            deadline = self.session.deadline()
            if deadline is not None:
                self.stage.wait(max(0.0, deadline - self.stage.now))
        if self.stage.engine.closes and "clean" not in self.stage.acts:
            self.stage.event(Closed())
        assert [act for act in self.stage.acts if act in ("clean", "end")] in (
            ["clean", "end"],
            ["end", "clean"],
        )
        assert self.session.deadline() is None


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
