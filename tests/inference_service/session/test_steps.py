"""Time the steps of units for spans and figures, on a clock of the test's own."""

from typing import Any

from inference_service.errors import Cancelled
from inference_service.interface.engine import Done as UnitDone
from inference_service.interface.engine import End, Failure, Finalized, Prefilled, UnitUsage
from inference_service.session.units import Generate, Stream
from tests.inference_service.support.session_world import INPUT, Stage

PREFILL, GENERATE, FINALIZE = Stream


def done(unit: int) -> UnitDone:
    return UnitDone(unit, End.LISTEN, None, 20)


ANSWERS: tuple[Any, ...] = (Prefilled(1, 20), done(1), Finalized(1, 22, 0, UnitUsage()))


def test_a_step_begins_when_it_was_asked_for_and_the_one_before_is_answered() -> None:
    stage = Stage().active()
    stage.now = 200.0
    stage.ask(1)
    for when, event in zip((201.0, 204.0, 209.0), ANSWERS, strict=True):
        stage.now = when
        stage.event(event)
    assert stage.steps == [(1, PREFILL, 200.0), (1, GENERATE, 201.0), (1, FINALIZE, 204.0)]


def test_a_step_asked_for_late_begins_when_it_is_asked_for() -> None:
    stage = Stage().active()
    steps: list[Any] = [("prefill", 1, INPUT), ("generate", 1, Generate()), ("finalize", 1)]
    for when, step, event in zip((200.0, 203.0, 207.0), steps, ANSWERS, strict=True):
        stage.now = when
        stage.call(*step, when)
        stage.event(event)
    assert stage.steps == [(1, PREFILL, 200.0), (1, GENERATE, 203.0), (1, FINALIZE, 207.0)]


def test_requests_may_come_before_their_unit() -> None:
    stage = Stage().active()
    stage.call("generate", 1, Generate(), 150.0)
    stage.call("finalize", 1, 150.0)
    stage.call("prefill", 1, INPUT, 160.0)
    stage.event(Prefilled(1, 20))
    assert stage.steps == [(1, PREFILL, 160.0)]


def test_a_refused_unit_has_its_steps_too() -> None:
    stage = Stage().active()
    stage.ask(1, Failure("AUDIO_INVALID", "No sound."))
    assert [step for _, step, _ in stage.steps] == [PREFILL, GENERATE, FINALIZE]


def test_failed_session_reports_steps_in_progress() -> None:
    stage = Stage().active()
    stage.now = 200.0
    stage.ask(1)
    stage.now = 201.0
    stage.event(Prefilled(1, 20))
    stage.call("prefill", 2, INPUT, 202.0)
    stage.session.fail(Cancelled("It went."), 203.0)
    assert stage.cut == [(1, GENERATE, 201.0), (2, PREFILL, 202.0)]


def test_a_unit_between_two_steps_is_not_under_way() -> None:
    stage = Stage().active()
    stage.call("prefill", 1, INPUT, stage.now)
    stage.event(Prefilled(1, 20))
    stage.session.fail(Cancelled("It went."), stage.now)
    assert stage.cut == []
