"""Test the rules of a session one at a time, without a network."""

from collections.abc import Callable
from typing import Any

import pytest

from antiphon.contract import Reason
from inference_service.errors import StreamExists
from inference_service.interface.engine import End, Failure, Piece, Progress, Ready
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


def test_engine_receives_steps_in_order_for_any_stream_order() -> None:
    stage = Stage().active()
    stage.call("finalize", 1, stage.now)
    for unit in (1, 2):
        stage.call("generate", unit, Generate(), stage.now)
    for unit in (1, 2):
        stage.call("prefill", unit, INPUT, stage.now)
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


def three_units(stage: Stage) -> None:
    for unit in (1, 2, 3):
        stage.call("prefill", unit, INPUT, stage.now)


def repeat(method: str, *content: object) -> Callable[[Stage], None]:
    def act(stage: Stage) -> None:
        stage.ask(1)
        stage.call(method, 1, *content, stage.now)

    return act


BROKEN: dict[str, tuple[Callable[[Stage], None], Reason]] = {
    "begins with 0": (lambda it: it.call("prefill", 0, INPUT, it.now), Reason.UNIT_OUT_OF_ORDER),
    "begins with 2": (lambda it: it.call("prefill", 2, INPUT, it.now), Reason.UNIT_OUT_OF_ORDER),
    "begins with 7": (lambda it: it.call("prefill", 7, INPUT, it.now), Reason.UNIT_OUT_OF_ORDER),
    "prefill repeated": (repeat("prefill", INPUT), Reason.UNIT_OUT_OF_ORDER),
    "generate repeated": (repeat("generate", Generate()), Reason.UNIT_OUT_OF_ORDER),
    "finalize repeated": (repeat("finalize"), Reason.UNIT_OUT_OF_ORDER),
    "beyond the window": (three_units, Reason.UNIT_WINDOW),
    "config repeated": (Stage.configure, Reason.CONFIG_REPEATED),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_rule_ends_the_session(case: str) -> None:
    act, reason = BROKEN[case]
    stage = Stage(Limits(window=2)).active()
    act(stage)
    assert stage.ended() == reason


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (("prefill", 1, INPUT, 100.0), Reason.CONFIG_REQUIRED),
        (("half_close", Stream.PREFILL, 100.0), Reason.CONFIG_REQUIRED),
        (("expect_config", 1), Reason.UNIT_OUT_OF_ORDER),
    ],
    ids=["input", "end", "config as unit 1"],
)
def test_nothing_but_a_config_as_unit_0_comes_first(call: tuple[Any, ...], reason: Reason) -> None:
    stage = Stage().attach_all()
    stage.call(*call)
    assert stage.reason == reason


def test_the_window_moves_when_a_unit_is_finalised() -> None:
    stage = Stage(Limits(window=2)).active()
    for unit in range(1, 20):
        stage.ask(unit)
        stage.work()
    assert [a.unit for a in stage.answers(Stream.FINALIZE)] == list(range(1, 20))


def test_a_cancel_reaches_the_engine_at_once() -> None:
    stage = Stage().active()
    stage.call("prefill", 1, INPUT, stage.now)
    stage.call("cancel", 1)
    assert stage.engine.cancelled == 1


@pytest.mark.parametrize(
    ("unit", "ends"), [(1, [End.CANCELLED, End.LISTEN]), (2, [End.CANCELLED, End.CANCELLED])]
)
def test_a_cancel_is_remembered_for_units_up_to_its_own(unit: int, ends: list[End]) -> None:
    stage = Stage().attach_all()
    stage.call("cancel", unit)
    stage.configure()
    stage.event(Ready(10))
    for asked in (1, 2):
        stage.ask(asked)
        stage.work()
    assert [a.end for a in stage.answers(Stream.GENERATE)] == ends


def test_a_refused_unit_gets_its_three_answers_in_their_turn_and_leaves_the_context_as_it_was() -> None:
    stage = Stage().active()
    stage.ask(1)
    stage.ask(2, content=BAD_AUDIO)
    assert stage.sent[1:] == []  # unit 1 has not been answered yet
    stage.work()
    prefilled, done = stage.answers(Stream.PREFILL)[2], stage.answers(Stream.GENERATE)[1]
    first, second = stage.answers(Stream.FINALIZE)
    assert (prefilled.unit, prefilled.failure) == (2, BAD_AUDIO)
    assert (done.unit, done.end, done.failure) == (2, End.FAILED, BAD_AUDIO)
    assert (first.unit, second.unit) == (1, 2)
    assert (second.context_tokens, second.session_usage) == (first.context_tokens, first.session_usage)


def test_a_refused_unit_never_reaches_the_engine_and_the_next_one_does() -> None:
    stage = Stage().active()
    stage.ask(1, content=BAD_AUDIO)
    stage.ask(2)
    stage.work()
    assert {unit for _, unit in stage.engine.history} == {2}
    assert [a.unit for a in stage.answers(Stream.FINALIZE)] == [1, 2]


def test_refused_parameters_fail_a_unit_that_is_heard_but_not_run_and_not_the_one_before() -> None:
    stage = Stage().active()
    stage.ask(1)
    stage.ask(2, run=Generate(refusal=BAD_PARAMS))
    assert stage.engine.rejected == {2: BAD_PARAMS}
    assert stage.engine.cancelled == 0
    stage.work()
    assert ("prefill", 2) in stage.engine.history
    assert stage.answers(Stream.PREFILL)[2].failure is None
    first, second = stage.answers(Stream.GENERATE)
    assert (first.end, second.end, second.failure) == (End.LISTEN, End.FAILED, BAD_PARAMS)


def test_a_long_answer_may_go_on_while_it_makes_progress() -> None:
    stage = Stage().active()
    stage.ask(1)
    for odd in (True, False, True):
        stage.wait(8)
        stage.event(Progress(1) if odd else Piece(1, "on"))
    assert stage.outcome is None
    stage.wait(11)
    assert stage.ended() == Reason.UNIT_TIMEOUT


def test_a_session_of_a_stream_has_a_wider_window() -> None:
    stage = Stage()
    stage.attach_all().configure(TokensSetup(Sampling(), 1))
    stage.event(Ready(0))
    for unit in range(1, 9):
        stage.ask(unit, StreamInput((1,)))
    assert stage.outcome is None
    stage.ask(9, StreamInput((1,)))
    assert stage.ended() == Reason.UNIT_WINDOW


def test_overrides_and_force_listen_pass_through() -> None:
    stage = Stage().active()
    asked: list[tuple[int, bool, UnitOverrides]] = []
    stage.engine.generate = lambda *call: asked.append(call)  # type: ignore[method-assign]
    run = Generate(True, UnitOverrides(temperature=0.0))
    stage.ask(1, run=run)
    assert asked == [(1, True, run.overrides)]
