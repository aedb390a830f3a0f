"""End a session drained, full, failed or abandoned; test the order of what follows."""

from typing import Any

import pytest

from antiphon.contract import Reason
from inference_service.errors import Draining, UnitTimeout
from inference_service.interface.engine import (
    Closed,
    Done,
    End,
    Failure,
    Piece,
    Prefilled,
    Ready,
    SessionFailed,
)
from inference_service.session.machine import Answer, GoAway, Limits, Phase
from inference_service.session.units import Generate, Stream, Unit
from tests.inference_service.support.session_world import INPUT, Stage

REFUSAL = Failure(Reason.AUDIO_INVALID, "duplex.audio.data must be finite.", "duplex.audio.data")


@pytest.mark.parametrize("units", [0, 1])
def test_half_closing_prefill_drains_and_ends_with_ok(units: int) -> None:
    stage = Stage().active()
    for unit in range(1, units + 1):
        stage.ask(unit)
    stage.call("half_close", Stream.PREFILL, stage.now)
    assert (stage.session.phase is Phase.DRAINING) == bool(units)
    assert stage.ended() is None
    assert (stage.session.phase, stage.acts) == (Phase.CLOSED, ["open", "cleaning", "clean", "end"])
    assert [a.unit for a in stage.answers(Stream.FINALIZE)] == [*range(1, units + 1)]


def test_a_session_half_closed_before_it_is_ready_still_becomes_ready() -> None:
    stage = Stage().attach_all()
    stage.configure()
    stage.call("half_close", Stream.PREFILL, stage.now)
    stage.event(Ready(10))
    stage.work()
    assert (len(stage.answers(Stream.PREFILL)), stage.outcome) == (1, None)


def test_an_end_that_comes_of_an_answer_is_not_taken_back_by_a_drain() -> None:
    class Deaf(Stage):
        """A stage whose caller never reads the answer to unit 2."""

        def send(self, stream: Stream, answer: Answer, unit: Unit | None = None) -> None:
            super().send(stream, answer, unit)
            if answer == Prefilled(2, failure=REFUSAL):
                self.session.fail(UnitTimeout("Nobody read prefill."), self.now)

    stage = Deaf().active()
    stage.call("prefill", 1, INPUT, stage.now)
    stage.call("prefill", 2, REFUSAL, stage.now)
    stage.call("half_close", Stream.PREFILL, stage.now)
    stage.work()
    assert stage.acts == ["open", "cleaning", "clean", "end"]
    assert stage.reason == Reason.UNIT_TIMEOUT


@pytest.mark.parametrize("stream", [Stream.GENERATE, Stream.FINALIZE])
@pytest.mark.parametrize("is_accepted", [True, False])
def test_half_closing_a_stream_with_units_unasked_is_out_of_order(stream: Stream, is_accepted: bool) -> None:
    stage = Stage().active()
    if is_accepted:
        stage.call("prefill", 1, INPUT, stage.now)
    stage.call("half_close", stream, stage.now)
    assert stage.session.is_over is is_accepted
    if not is_accepted:
        stage.call("prefill", 1, INPUT, stage.now)
    assert stage.ended() == Reason.UNIT_OUT_OF_ORDER


@pytest.mark.parametrize(("method", "arguments"), [("generate", (Generate(),)), ("finalize", ())])
@pytest.mark.parametrize("is_ahead", [True, False])
def test_asking_for_more_than_prefill_brought_is_out_of_order(
    method: str, arguments: tuple[object, ...], is_ahead: bool
) -> None:
    stage = Stage().active()
    stage.ask(1)
    calls: list[Any] = [("half_close", Stream.PREFILL), (method, 2, *arguments)]
    for call in reversed(calls) if is_ahead else calls:
        stage.call(*call, stage.now)
    assert stage.ended() == Reason.UNIT_OUT_OF_ORDER


@pytest.mark.parametrize("units", [1, 2])
def test_units_accepted_before_the_context_was_full_are_finalised_and_then_it_ends(units: int) -> None:
    stage = Stage().active()
    for unit in range(1, units + 1):
        stage.ask(unit)
    stage.work(End.CONTEXT_FULL)
    assert [a.unit for a in stage.answers(Stream.FINALIZE)] == [*range(1, units + 1)]
    assert (stage.session.phase, stage.outcome) == (Phase.CLOSED, None)


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


def test_the_streams_end_when_the_engine_is_clean_or_its_time_to_clean_up_is_over() -> None:
    stage = Stage().active()
    stage.session.fail(Draining("bye"), stage.now)
    assert stage.acts == ["open", "cleaning"]
    stage.event(Closed())
    assert stage.acts == ["open", "cleaning", "clean", "end"]
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
    stage.call("prefill", 9, INPUT, stage.now)
    stage.session.fail(Draining("late"), stage.now)
    assert stage.ended() == Reason.UNIT_OUT_OF_ORDER


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
    assert stage.ended() == expected


def test_an_engine_that_closes_unasked_fails_the_session() -> None:
    stage = Stage().active()
    stage.event(Closed())
    assert stage.acts == ["open", "cleaning", "clean", "end"]
    assert stage.reason == Reason.INFERENCE_FAILED
