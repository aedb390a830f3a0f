"""Order rewinds among units, and refuse those that come too early; without a network."""

import pytest

from antiphon.contract import Reason
from inference_service.interface.engine import Closed, Failure, Rewound
from inference_service.session.machine import Limits
from inference_service.session.units import MOST_REWINDS, Generate, Rewind, Stream
from tests.inference_service.support.session_world import INPUT, Stage


def finalised(units: int, limits: Limits | None = None) -> Stage:
    """A session whose first units are over."""
    stage = Stage(limits).active()
    for unit in range(1, units + 1):
        stage.ask(unit)
        stage.work()
    return stage


def answers(stage: Stage) -> list[Rewound]:
    return [answer for answer in stage.answers(Stream.GENERATE) if isinstance(answer, Rewound)]


def test_a_rewind_reaches_the_engine_and_its_answer_the_caller() -> None:
    stage = finalised(3)
    stage.call("rewind", Rewind(2, 12_000), stage.now)
    stage.work()
    assert stage.engine.rewinds == [(2, 12_000)]
    assert [(answer.unit, answer.failure) for answer in answers(stage)] == [(2, None)]


def test_rewind_runs_after_units_generated_before_it() -> None:
    stage = finalised(1)
    for unit in (2, 3):
        stage.call("prefill", unit, INPUT, stage.now)
    stage.call("generate", 2, Generate(), stage.now)
    stage.call("rewind", Rewind(1), stage.now)
    stage.call("generate", 3, Generate(), stage.now)
    assert ("rewind", 1) not in stage.engine.history, "unit 2 was not asked to be closed"
    stage.call("finalize", 2, stage.now)
    stage.call("finalize", 3, stage.now)
    order = stage.engine.history
    assert order[order.index(("finalize", 2)) :][:4] == [
        ("finalize", 2),
        ("rewind", 1),
        ("prefill", 3),
        ("generate", 3),
    ]


@pytest.mark.parametrize("unit", [2, 3, 99])
def test_a_unit_in_flight_or_to_come_is_refused_and_the_session_goes_on(unit: int) -> None:
    stage = finalised(1)
    stage.call("prefill", 2, INPUT, stage.now)
    stage.call("rewind", Rewind(unit), stage.now)
    (answer,) = answers(stage)
    assert answer.failure is not None
    assert (answer.failure.reason, answer.failure.field) == (Reason.PARAMS_INVALID, "unit")
    assert stage.engine.rewinds == []
    stage.call("generate", 2, Generate(), stage.now)
    stage.call("finalize", 2, stage.now)
    stage.work()
    assert [a.unit for a in stage.answers(Stream.FINALIZE)] == [1, 2]


def test_unit_0_is_no_unit_to_go_back_to() -> None:
    stage = finalised(1)
    stage.call("rewind", Rewind(0), stage.now)
    assert stage.ended() == Reason.PAYLOAD_INVALID


def test_unsupported_rewind_is_answered_with_failure_and_not_run() -> None:
    stage, why = finalised(1), Failure(Reason.CONTENT_UNSUPPORTED, "no", "rewind")
    stage.call("rewind", Rewind(1, refusal=why), stage.now)
    assert [answer.failure for answer in answers(stage)] == [why]
    assert stage.engine.rewinds == []


def test_only_so_many_rewinds_may_wait() -> None:
    stage = finalised(1)
    for _ in range(MOST_REWINDS + 1):
        stage.call("rewind", Rewind(1), stage.now)
    assert [answer.failure is not None for answer in answers(stage)] == [True]
    stage.work()
    stage.call("rewind", Rewind(1), stage.now)
    stage.work()
    assert len(stage.engine.rewinds) == MOST_REWINDS + 1


def test_a_session_that_drains_answers_its_rewind_before_it_ends() -> None:
    stage = finalised(2)
    stage.call("rewind", Rewind(1), stage.now)
    stage.call("half_close", Stream.PREFILL, stage.now)
    assert not stage.session.is_over
    stage.event(stage.engine.step())
    assert stage.session.is_over
    assert [answer.unit for answer in answers(stage)] == [1]
    stage.event(Closed())
    assert stage.reason is None


def test_only_a_rewind_that_is_never_carried_out_ends_the_session() -> None:
    stage = finalised(1, Limits(unit_s=10))
    stage.call("rewind", Rewind(1), stage.now)
    stage.work()
    stage.wait(600)
    stage.call("rewind", Rewind(1), stage.now)
    stage.wait(9.9)
    assert not stage.session.is_over
    stage.wait(0.1)
    assert stage.ended() == Reason.UNIT_TIMEOUT
