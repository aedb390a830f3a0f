"""Every wait of a session ends, by the clock that it is given."""

import pytest

from antiphon.contract import Reason
from inference_service.interface.engine import Progress, Ready
from inference_service.session.machine import Limits
from inference_service.session.units import Generate, Stream
from tests.inference_service.support.session_world import INPUT, SETUP, Stage


def test_the_limits_are_those_of_the_contract() -> None:
    limits = Limits()
    assert (limits.attach_s, limits.config_s, limits.unit_s) == (5, 30, 10)
    assert (limits.go_away_ahead_s, limits.window) == (30, 2)


def test_streams_must_attach() -> None:
    stage = Stage(Limits(attach_s=5))
    stage.session.attach(Stream.GENERATE, stage.now)
    stage.wait(4.9)
    assert not stage.session.is_over
    stage.wait(0.1)
    assert stage.reason == Reason.ATTACH_TIMEOUT
    assert stage.outcome is not None
    assert "Prefill and Finalize" in stage.outcome.message


def test_the_config_must_come() -> None:
    stage = Stage(Limits(config_s=30)).attach_all()
    stage.wait(30)
    assert stage.reason == Reason.ATTACH_TIMEOUT


def test_the_model_must_read_the_config_when_its_turn_has_come() -> None:
    stage = Stage(Limits(config_s=30)).attach_all()
    stage.now += 29
    stage.configure()
    for _ in range(5):
        stage.wait(29)
        assert not stage.session.is_over
        stage.event(Progress(0))
    stage.wait(29)
    assert not stage.session.is_over
    stage.wait(1)
    assert stage.ended() == Reason.UNIT_TIMEOUT


@pytest.mark.parametrize("missing", ["generate", "finalize"])
def test_generate_and_finalize_must_follow_the_prefill(missing: str) -> None:
    stage = Stage(Limits(unit_s=10)).active()
    stage.call("prefill", 1, INPUT, stage.now)
    if missing == "finalize":
        stage.call("generate", 1, Generate(), stage.now)
    stage.wait(10)
    assert stage.ended() == Reason.UNIT_TIMEOUT
    assert stage.outcome is not None
    assert missing.capitalize() in stage.outcome.message


@pytest.mark.parametrize("answered", [0, 1, 2])
def test_the_engine_must_answer(answered: int) -> None:
    stage = Stage(Limits(unit_s=10)).active()
    stage.ask(1)
    for _ in range(answered):
        stage.event(stage.engine.step())
    stage.wait(10)
    assert stage.ended() == Reason.UNIT_TIMEOUT


def test_a_unit_waits_for_the_engine_only_from_the_end_of_the_one_before() -> None:
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


def test_idle_timeout_counts_from_the_last_finalised_unit_if_there_is_one() -> None:
    assert Stage().active().session.deadline() is None
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
    assert stage.ended() == Reason.IDLE_TIMEOUT


def test_max_duration_ends_a_busy_session() -> None:
    stage = Stage(Limits(unit_s=1000)).attach_all()
    stage.call("expect_config", 0)
    stage.session.open(SETUP, stage.now, max_duration_s=300)
    stage.event(Ready(10))
    stage.ask(1)
    stage.wait(300)
    assert stage.ended() == Reason.SESSION_LIMIT


def test_a_clock_that_stands_still_ends_nothing() -> None:
    stage = Stage().active()
    stage.ask(1)
    stage.wait(0)
    assert not stage.session.is_over
