"""What a session does, one rule at a time, without a network."""

import pytest

from antiphon.semconv import Reason
from inference_service.engine.api import (
    Closed,
    Done,
    End,
    Failure,
    Finalized,
    Piece,
    Prefilled,
    Ready,
    SessionFailed,
    UnitOverrides,
)
from inference_service.errors import Draining, StreamExists
from inference_service.sessions import GoAway, Limits, Phase
from inference_service.units import Run, Stream
from tests.worker.session_world import PCM, SETUP, Stage

BAD_AUDIO = Failure(Reason.AUDIO_INVALID, "duplex.audio.data must be finite.", "duplex.audio.data")
BAD_PARAMS = Failure(Reason.PARAMS_INVALID, "run.sampling.top_p must be at most 1.", "run.sampling.top_p")


def test_the_phases_follow_the_streams_and_the_config() -> None:
    stage = Stage()
    phases = [stage.session.phase]
    stage.attach_all()
    phases.append(stage.session.phase)
    stage.configure()
    stage.event(Ready(10))
    phases.append(stage.session.phase)
    assert phases == [Phase.ATTACHING, Phase.CONFIGURING, Phase.ACTIVE]


def test_a_stream_that_exists_is_refused_and_the_session_goes_on() -> None:
    stage = Stage()
    stage.session.attach(Stream.PREFILL, stage.now)
    with pytest.raises(StreamExists):
        stage.session.attach(Stream.PREFILL, stage.now)
    assert stage.session.phase is Phase.ATTACHING


def test_the_engine_gets_the_steps_in_order_whatever_the_order_of_the_streams() -> None:
    stage = Stage().active()
    stage.call("finalize", 1, stage.now)
    stage.call("generate", 1, Run(), stage.now)
    stage.call("generate", 2, Run(), stage.now)
    stage.call("prefill", 1, PCM, stage.now)
    stage.call("prefill", 2, PCM, stage.now)
    stage.call("finalize", 2, stage.now)
    steps = [(step, unit) for unit in (1, 2) for step in ("prefill", "generate", "finalize")]
    assert stage.engine.history == steps


def test_units_sent_before_the_model_is_ready_wait_for_it() -> None:
    stage = Stage().attach_all()
    stage.configure()
    stage.ask(1)
    assert stage.engine.history == []
    stage.event(Ready(10))
    assert stage.engine.history == [("prefill", 1), ("generate", 1), ("finalize", 1)]


@pytest.mark.parametrize("unit", [0, 2, 7])
def test_a_first_unit_other_than_1_is_out_of_order(unit: int) -> None:
    stage = Stage().active()
    stage.call("prefill", unit, PCM, stage.now)
    stage.work()
    assert stage.reason == Reason.UNIT_OUT_OF_ORDER


@pytest.mark.parametrize(
    ("method", "arguments"), [("prefill", (PCM,)), ("generate", (Run(),)), ("finalize", ())]
)
def test_a_repeated_unit_is_out_of_order_on_every_stream(method: str, arguments: tuple[object, ...]) -> None:
    stage = Stage().active()
    stage.ask(1)
    stage.call(method, 1, *arguments, stage.now)
    stage.work()
    assert stage.reason == Reason.UNIT_OUT_OF_ORDER


def test_one_unit_more_than_the_window_ends_the_session() -> None:
    stage = Stage(Limits(window=2)).active()
    for unit in (1, 2, 3):
        stage.call("prefill", unit, PCM, stage.now)
    stage.work()
    assert stage.reason == Reason.UNIT_WINDOW


def test_the_window_moves_when_a_unit_is_finalised() -> None:
    stage = Stage(Limits(window=2)).active()
    for unit in range(1, 20):
        stage.ask(unit)
        stage.work()
    assert [a.unit for a in stage.answers(Stream.FINALIZE)] == list(range(1, 20))


def test_a_config_that_comes_twice_ends_the_session() -> None:
    stage = Stage().active()
    stage.configure()
    stage.work()
    assert stage.reason == Reason.CONFIG_REPEATED


def test_input_before_the_config_ends_the_session() -> None:
    stage = Stage().attach_all()
    stage.call("prefill", 1, PCM, stage.now)
    assert stage.reason == Reason.CONFIG_REQUIRED


def test_the_config_is_unit_0() -> None:
    stage = Stage().attach_all()
    stage.call("expect_config", 1)
    assert stage.reason == Reason.UNIT_OUT_OF_ORDER


def test_a_cancel_reaches_the_engine_at_once() -> None:
    stage = Stage().active()
    stage.call("prefill", 1, PCM, stage.now)
    stage.call("cancel", 1)
    assert stage.engine.cancelled == 1


def test_a_cancel_is_remembered_for_units_that_come_later() -> None:
    stage = Stage().attach_all()
    stage.call("cancel", 2)
    stage.configure()
    stage.event(Ready(10))
    stage.ask(1)
    stage.work()
    stage.ask(2)
    stage.work()
    assert [a.end for a in stage.answers(Stream.GENERATE)] == [End.CANCELLED, End.CANCELLED]


def test_a_cancel_ends_no_unit_beyond_its_own() -> None:
    stage = Stage().active()
    stage.call("cancel", 1)
    stage.ask(1)
    stage.ask(2)
    stage.work()
    assert [a.end for a in stage.answers(Stream.GENERATE)] == [End.CANCELLED, End.LISTEN]


def test_a_refused_unit_gets_its_three_answers_in_their_turn() -> None:
    stage = Stage().active()
    stage.ask(1)
    stage.ask(2, content=BAD_AUDIO)
    assert stage.sent[1:] == []  # unit 1 has not been answered yet
    stage.work()
    prefilled, done = stage.answers(Stream.PREFILL)[2], stage.answers(Stream.GENERATE)[1]
    assert (prefilled.unit, prefilled.failure) == (2, BAD_AUDIO)
    assert (done.unit, done.end, done.failure) == (2, End.FAILED, BAD_AUDIO)
    assert [a.unit for a in stage.answers(Stream.FINALIZE)] == [1, 2]


def test_a_refused_unit_leaves_the_context_as_it_was() -> None:
    stage = Stage().active()
    stage.ask(1)
    stage.work()
    stage.ask(2, content=BAD_AUDIO)
    first, second = stage.answers(Stream.FINALIZE)
    assert (second.context_tokens, second.session_usage) == (first.context_tokens, first.session_usage)


def test_a_refused_unit_never_reaches_the_engine_and_the_next_one_does() -> None:
    stage = Stage().active()
    stage.ask(1, content=BAD_AUDIO)
    stage.ask(2)
    stage.work()
    assert {unit for _, unit in stage.engine.history} == {2}
    assert [a.unit for a in stage.answers(Stream.FINALIZE)] == [1, 2]


def test_refused_parameters_fail_a_unit_that_is_heard_all_the_same() -> None:
    stage = Stage().active()
    stage.ask(1, run=Run(refusal=BAD_PARAMS))
    stage.work()
    assert ("prefill", 1) in stage.engine.history
    assert stage.answers(Stream.PREFILL)[1].failure is None
    done = stage.answers(Stream.GENERATE)[0]
    assert (done.end, done.failure) == (End.FAILED, BAD_PARAMS)


def test_refused_parameters_of_a_unit_do_not_silence_the_one_before() -> None:
    stage = Stage().active()
    stage.ask(1)
    stage.ask(2, run=Run(refusal=BAD_PARAMS))
    assert stage.engine.cancelled == 0
    stage.work()
    assert [a.end for a in stage.answers(Stream.GENERATE)] == [End.LISTEN, End.FAILED]


def test_a_unit_with_refused_parameters_says_nothing() -> None:
    stage = Stage().active()
    stage.ask(1, run=Run(refusal=BAD_PARAMS))
    stage.event(Piece(1, "no"))
    assert stage.answers(Stream.GENERATE) == []


def test_overrides_and_force_listen_pass_through() -> None:
    stage = Stage().active()
    asked: list[tuple[int, bool, UnitOverrides]] = []
    stage.engine.generate = lambda *call: asked.append(call)  # type: ignore[method-assign]
    run = Run(True, UnitOverrides(temperature=0.0))
    stage.ask(1, run=run)
    assert asked == [(1, True, run.overrides)]


def test_half_closing_prefill_drains_and_ends_with_ok() -> None:
    stage = Stage().active()
    stage.ask(1)
    stage.call("half_close", Stream.PREFILL, stage.now)
    assert stage.session.phase is Phase.DRAINING
    stage.work()
    assert stage.acts == ["open", "cleaning", "clean", "end"]
    assert stage.outcome is None
    assert [a.unit for a in stage.answers(Stream.FINALIZE)] == [1]


def test_half_closing_prefill_without_a_unit_ends_with_ok() -> None:
    stage = Stage().active()
    stage.call("half_close", Stream.PREFILL, stage.now)
    stage.work()
    assert (stage.session.phase, stage.outcome) == (Phase.CLOSED, None)


def test_a_session_half_closed_before_it_is_ready_still_becomes_ready() -> None:
    stage = Stage().attach_all()
    stage.configure()
    stage.call("half_close", Stream.PREFILL, stage.now)
    stage.event(Ready(10))
    stage.work()
    assert (len(stage.answers(Stream.PREFILL)), stage.outcome) == (1, None)


def test_half_closing_prefill_before_the_config_ends_the_session() -> None:
    stage = Stage().attach_all()
    stage.call("half_close", Stream.PREFILL, stage.now)
    assert stage.reason == Reason.CONFIG_REQUIRED


@pytest.mark.parametrize("stream", [Stream.GENERATE, Stream.FINALIZE])
def test_half_closing_a_stream_with_accepted_units_unasked_is_out_of_order(stream: Stream) -> None:
    stage = Stage().active()
    stage.call("prefill", 1, PCM, stage.now)
    stage.call("half_close", stream, stage.now)
    stage.work()
    assert stage.reason == Reason.UNIT_OUT_OF_ORDER


@pytest.mark.parametrize("stream", [Stream.GENERATE, Stream.FINALIZE])
def test_a_unit_accepted_after_such_a_half_close_is_out_of_order(stream: Stream) -> None:
    stage = Stage().active()
    stage.call("half_close", stream, stage.now)
    assert not stage.session.is_over
    stage.call("prefill", 1, PCM, stage.now)
    stage.work()
    assert stage.reason == Reason.UNIT_OUT_OF_ORDER


def test_half_closing_everything_after_the_last_request_is_a_drain() -> None:
    stage = Stage().active()
    stage.ask(1)
    for stream in (Stream.FINALIZE, Stream.GENERATE, Stream.PREFILL):
        stage.call("half_close", stream, stage.now)
    stage.work()
    assert stage.outcome is None


def test_asking_for_a_unit_that_prefill_never_brought_is_out_of_order() -> None:
    stage = Stage().active()
    stage.call("generate", 1, Run(), stage.now)
    stage.call("half_close", Stream.PREFILL, stage.now)
    stage.work()
    assert stage.reason == Reason.UNIT_OUT_OF_ORDER


def test_a_full_context_is_finalised_and_then_ends_with_ok() -> None:
    stage = Stage().active()
    stage.ask(1)
    stage.work(End.CONTEXT_FULL)
    assert [a.unit for a in stage.answers(Stream.FINALIZE)] == [1]
    assert (stage.session.phase, stage.outcome) == (Phase.CLOSED, None)


def test_a_unit_accepted_before_the_context_was_full_is_still_answered() -> None:
    stage = Stage().active()
    stage.ask(1)
    stage.ask(2)
    stage.work(End.CONTEXT_FULL)
    assert [a.unit for a in stage.answers(Stream.FINALIZE)] == [1, 2]


def test_units_that_come_after_a_full_context_are_not_heard() -> None:
    stage = Stage().active()
    stage.ask(1)
    stage.event(stage.engine.step())
    stage.event(stage.engine.step(End.CONTEXT_FULL))
    stage.ask(2)
    assert not stage.session.is_over
    stage.work()
    assert [a.unit for a in stage.answers(Stream.FINALIZE)] == [1]
    assert stage.outcome is None


def test_the_streams_end_only_after_the_engine_is_clean() -> None:
    stage = Stage().active()
    stage.session.fail(Draining("bye"), stage.now)
    assert stage.acts == ["open", "cleaning"]
    stage.event(Closed())
    assert stage.acts == ["open", "cleaning", "clean", "end"]


def test_an_engine_that_never_cleans_up_holds_the_slot_but_not_the_streams() -> None:
    stage = Stage(Limits(cleanup_s=5)).active()
    stage.session.fail(Draining("bye"), stage.now)
    stage.wait(5)
    assert stage.acts == ["open", "cleaning", "end"]
    stage.event(Closed())
    assert stage.acts == ["open", "cleaning", "end", "clean"]


def test_an_abandoned_session_ends_at_once() -> None:
    stage = Stage().active()
    stage.session.abandon(Draining("bye"), stage.now)
    assert stage.acts == ["open", "cleaning", "end"]


def test_the_first_end_of_a_session_counts() -> None:
    stage = Stage().active()
    stage.call("prefill", 9, PCM, stage.now)
    stage.session.fail(Draining("late"), stage.now)
    stage.work()
    assert stage.reason == Reason.UNIT_OUT_OF_ORDER


def test_nothing_is_answered_after_the_end() -> None:
    stage = Stage().active()
    stage.ask(1)
    stage.session.fail(Draining("bye"), stage.now)
    sent = len(stage.sent)
    for event in (Prefilled(1), Piece(1, "late"), Done(1, End.LISTEN, None, 0)):
        stage.event(event)
    stage.ask(2)
    stage.session.go_away(GoAway(1.0, "late"))
    assert len(stage.sent) == sent


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (Reason.KV_EXHAUSTED, Reason.KV_EXHAUSTED),
        (Reason.ENGINE_FATAL, Reason.ENGINE_FATAL),
        (Reason.CONFIG_INVALID, Reason.CONFIG_INVALID),
        (Reason.INFERENCE_FAILED, Reason.INFERENCE_FAILED),
        ("SOMETHING_NEW", Reason.INFERENCE_FAILED),
    ],
)
def test_an_engine_that_gives_a_session_up_says_why(said: str, expected: Reason) -> None:
    stage = Stage().active()
    stage.event(SessionFailed(said, "It cannot go on."))
    stage.work()
    assert stage.reason == expected


def test_an_engine_that_closes_unasked_fails_the_session() -> None:
    stage = Stage().active()
    stage.event(Closed())
    assert stage.acts == ["open", "cleaning", "clean", "end"]
    assert stage.reason == Reason.INFERENCE_FAILED


class TestClock:
    """Every wait ends."""

    def test_streams_must_attach(self) -> None:
        stage = Stage(Limits(attach_s=5))
        stage.session.attach(Stream.GENERATE, stage.now)
        stage.wait(4.9)
        assert not stage.session.is_over
        stage.wait(0.1)
        assert stage.reason == Reason.ATTACH_TIMEOUT
        assert stage.outcome is not None
        assert "Prefill and Finalize" in stage.outcome.message

    def test_the_config_must_come(self) -> None:
        stage = Stage(Limits(config_s=30)).attach_all()
        stage.wait(30)
        assert stage.reason == Reason.ATTACH_TIMEOUT

    def test_the_model_must_read_the_config(self) -> None:
        stage = Stage(Limits(config_s=30)).attach_all()
        stage.now += 29
        stage.configure()
        stage.wait(29)
        assert not stage.session.is_over
        stage.wait(1)
        stage.event(Closed())
        assert stage.reason == Reason.UNIT_TIMEOUT

    @pytest.mark.parametrize("missing", ["generate", "finalize"])
    def test_generate_and_finalize_must_follow_the_prefill(self, missing: str) -> None:
        stage = Stage(Limits(unit_s=10)).active()
        stage.call("prefill", 1, PCM, stage.now)
        if missing == "finalize":
            stage.call("generate", 1, Run(), stage.now)
        stage.wait(10)
        stage.event(Closed())
        assert stage.reason == Reason.UNIT_TIMEOUT
        assert stage.outcome is not None
        assert missing.capitalize() in stage.outcome.message

    def test_the_engine_must_answer(self) -> None:
        stage = Stage(Limits(unit_s=10)).active()
        stage.ask(1)
        stage.wait(10)
        stage.event(Closed())
        assert stage.reason == Reason.UNIT_TIMEOUT

    def test_a_unit_waits_for_the_engine_only_from_the_end_of_the_one_before(self) -> None:
        stage = Stage(Limits(unit_s=10)).active()
        stage.ask(1)
        stage.ask(2)
        stage.wait(9)
        for _ in range(3):
            stage.event(stage.engine.step())
        stage.wait(9)
        assert not stage.session.is_over
        stage.wait(1)
        assert stage.session.is_over

    def test_an_idle_session_has_no_deadline_unless_asked_for(self) -> None:
        assert Stage().active().session.deadline() is None

    def test_idle_timeout_counts_from_the_last_finalised_unit(self) -> None:
        stage = Stage().attach_all()
        stage.call("expect_config", 0)
        stage.session.open(SETUP, stage.now, idle_timeout_s=60)
        stage.event(Ready(10))
        stage.wait(59)
        stage.ask(1)
        stage.work()
        stage.wait(59)
        assert not stage.session.is_over
        stage.wait(1)
        stage.event(Closed())
        assert stage.reason == Reason.IDLE_TIMEOUT

    def test_max_duration_ends_a_busy_session(self) -> None:
        stage = Stage(Limits(unit_s=1000)).attach_all()
        stage.call("expect_config", 0)
        stage.session.open(SETUP, stage.now, max_duration_s=300)
        stage.event(Ready(10))
        stage.ask(1)
        stage.wait(300)
        stage.event(Closed())
        assert stage.reason == Reason.SESSION_LIMIT

    def test_a_clock_that_stands_still_ends_nothing(self) -> None:
        stage = Stage().active()
        stage.ask(1)
        stage.wait(0)
        assert not stage.session.is_over


def test_a_finalised_unit_is_counted_once() -> None:
    stage = Stage().active()
    stage.ask(1)
    stage.work()
    assert sum(isinstance(answer, Finalized) for _, answer in stage.sent) == 1
