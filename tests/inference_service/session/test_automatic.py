"""Units that are generated and finalised by themselves, beside those that are asked for."""

import pytest

from inference_service.errors import PayloadInvalid, UnitOutOfOrder
from inference_service.interface.engine import Ready
from inference_service.session.units import Generate, Stream
from tests.inference_service.support.session_world import INPUT, SETUP, Stage


def automatic() -> Stage:
    """Return an active session whose units run by themselves."""
    stage = Stage().attach_all()
    stage.session.expect_config(0)
    stage.session.open(SETUP, stage.now, automatic=True)
    stage.event(Ready(10))
    return stage


@pytest.mark.parametrize("keeps", [False, True])
def test_automatic_unit_is_run_and_closed_with_its_three_answers(keeps: bool) -> None:
    stage = automatic()
    stage.session.run_automatically(1, INPUT, Generate(), stage.now, keep_last_token=keeps)
    stage.work()

    assert [step for step, _ in stage.engine.history] == ["prefill", "generate", "finalize"]
    assert stage.engine.kept == [keeps]
    assert [stream for stream, _ in stage.sent[1:]] == [Stream.PREFILL, Stream.GENERATE, Stream.FINALIZE]


@pytest.mark.parametrize("method", ["generate", "finalize"])
def test_request_for_an_automatic_unit_is_out_of_order(method: str) -> None:
    stage = automatic()
    stage.session.run_automatically(1, INPUT, Generate(), stage.now, keep_last_token=False)
    arguments = (1, Generate(), stage.now) if method == "generate" else (1, stage.now)

    with pytest.raises(UnitOutOfOrder):
        getattr(stage.session, method)(*arguments)


@pytest.mark.parametrize("is_automatic", [False, True])
def test_early_generate_is_out_of_order_only_if_units_are_automatic(
    is_automatic: bool,
) -> None:
    stage = Stage().attach_all()
    stage.session.generate(1, Generate(), stage.now)
    stage.session.expect_config(0)

    if is_automatic:
        with pytest.raises(UnitOutOfOrder):
            stage.session.open(SETUP, stage.now, automatic=True)
    else:
        stage.session.open(SETUP, stage.now)
        assert stage.acts == ["open"]


def test_automatic_unit_drops_last_token_unless_finalize_keeps_it() -> None:
    stage = Stage().active()
    stage.ask(1)
    stage.call("prefill", 2, INPUT, stage.now)
    stage.call("generate", 2, Generate(), stage.now)
    stage.session.finalize(2, stage.now, keep_last_token=True)
    stage.work()

    assert stage.engine.kept == [False, True]


@pytest.mark.parametrize("number", [0, -1])
def test_cancel_of_no_unit_is_invalid(number: int) -> None:
    stage = Stage().active()

    with pytest.raises(PayloadInvalid, match="must be 1 or more in a cancel"):
        stage.session.cancel(number)
    stage.session.cancel(1)
    assert stage.engine.cancelled == 1
