"""What a session does, one rule at a time, without a network."""

import pytest

from antiphon.contract import Reason
from inference_service.errors import StreamExists
from inference_service.interface.engine import End, Failure, Finalized, Piece, Progress, Ready
from inference_service.interface.setups import Sampling, StreamInput, TokensSetup, UnitOverrides
from inference_service.session.machine import Limits, Phase
from inference_service.session.units import Generate, Stream
from tests.inference_service.support.session_world import INPUT, Stage

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
    stage.call("generate", 1, Generate(), stage.now)
    stage.call("generate", 2, Generate(), stage.now)
    stage.call("prefill", 1, INPUT, stage.now)
    stage.call("prefill", 2, INPUT, stage.now)
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
    stage.call("prefill", unit, INPUT, stage.now)
    stage.work()
    assert stage.reason == Reason.UNIT_OUT_OF_ORDER


@pytest.mark.parametrize(
    ("method", "arguments"), [("prefill", (INPUT,)), ("generate", (Generate(),)), ("finalize", ())]
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
        stage.call("prefill", unit, INPUT, stage.now)
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
    stage.call("prefill", 1, INPUT, stage.now)
    assert stage.reason == Reason.CONFIG_REQUIRED


def test_the_config_is_unit_0() -> None:
    stage = Stage().attach_all()
    stage.call("expect_config", 1)
    assert stage.reason == Reason.UNIT_OUT_OF_ORDER


def test_a_cancel_reaches_the_engine_at_once() -> None:
    stage = Stage().active()
    stage.call("prefill", 1, INPUT, stage.now)
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
    stage.ask(1, run=Generate(refusal=BAD_PARAMS))
    stage.work()
    assert ("prefill", 1) in stage.engine.history
    assert stage.answers(Stream.PREFILL)[1].failure is None
    done = stage.answers(Stream.GENERATE)[0]
    assert (done.end, done.failure) == (End.FAILED, BAD_PARAMS)


def test_refused_parameters_of_a_unit_do_not_silence_the_one_before() -> None:
    stage = Stage().active()
    stage.ask(1)
    stage.ask(2, run=Generate(refusal=BAD_PARAMS))
    assert stage.engine.cancelled == 0
    stage.work()
    assert [a.end for a in stage.answers(Stream.GENERATE)] == [End.LISTEN, End.FAILED]


def test_a_unit_with_refused_parameters_is_not_run() -> None:
    stage = Stage().active()
    stage.ask(1, run=Generate(refusal=BAD_PARAMS))
    assert stage.engine.rejected == {1: BAD_PARAMS}


def test_a_long_answer_may_go_on_while_it_makes_progress() -> None:
    stage = Stage().active()
    stage.ask(1)
    for odd in (True, False, True):
        stage.wait(8)
        stage.event(Progress(1) if odd else Piece(1, "on"))
    assert stage.outcome is None
    stage.wait(11)
    stage.work()
    assert stage.reason == Reason.UNIT_TIMEOUT


def test_a_session_of_a_stream_has_a_wider_window() -> None:
    stage = Stage()
    stage.attach_all().configure(TokensSetup(Sampling(), 1))
    stage.event(Ready(0))
    for unit in range(1, 9):
        stage.ask(unit, StreamInput((1,)))
    assert stage.outcome is None
    stage.ask(9, StreamInput((1,)))
    stage.work()
    assert stage.reason == Reason.UNIT_WINDOW


def test_overrides_and_force_listen_pass_through() -> None:
    stage = Stage().active()
    asked: list[tuple[int, bool, UnitOverrides]] = []
    stage.engine.generate = lambda *call: asked.append(call)  # type: ignore[method-assign]
    run = Generate(True, UnitOverrides(temperature=0.0))
    stage.ask(1, run=run)
    assert asked == [(1, True, run.overrides)]


def test_a_finalised_unit_is_counted_once() -> None:
    stage = Stage().active()
    stage.ask(1)
    stage.work()
    assert sum(isinstance(answer, Finalized) for _, answer in stage.sent) == 1
