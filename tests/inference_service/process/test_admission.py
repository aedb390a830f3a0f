"""Let callers in beside units whose callers keep them waiting: with the shipped model."""

from typing import Any

import pytest

from antiphon.contract import Reason
from inference_service.app import load_engine
from inference_service.engine.runtime import Runtime
from inference_service.session import admission
from inference_service.session.units import Stream
from tests.inference_service.support.caller import Caller, channel_to
from tests.support.passing import Passing
from tests.support.scripted_engine import RunningWorker, running_worker

UNITS = 3
LONG_S = 5.0
"""More than any unit may take."""


@pytest.fixture(autouse=True)
def few_units_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "LEAST_UNITS", UNITS)


async def refusal(worker: RunningWorker, newcomer: Caller) -> str:
    """Why a busy worker, which goes by how long units take, does not let somebody in; empty if it does."""
    worker.worker.admission.shares = lambda: (0.5, 0.7)  # type: ignore[method-assign]
    call = newcomer.start(Stream.PREFILL)
    return "" if await call.initial_metadata() else (await newcomer.end()).reason


async def test_a_caller_that_keeps_generate_back_makes_no_worker_slow(passing: Passing) -> None:
    async with running_worker(load_engine, slots=2) as worker, channel_to(worker.address) as channel:
        attacker = await Caller(channel).ready()
        for number in range(1, UNITS + 1):
            await attacker.prefill(number)
            await attacker.read(Stream.PREFILL)
            passing(LONG_S)
            await attacker.generate(number)
            await attacker.finalize(number)
            said = await attacker.read(Stream.GENERATE)
            assert said.done.timings.total.ToSeconds() >= LONG_S
            await attacker.read(Stream.FINALIZE)
        assert await refusal(worker, Caller(channel)) == ""


@pytest.mark.parametrize("no_admission", [False, True])
async def test_slow_worker_rejects_sessions_unless_admission_control_is_off(
    passing: Passing, monkeypatch: pytest.MonkeyPatch, no_admission: bool
) -> None:
    think = Runtime.think

    def slow(runtime: Runtime, segments: list[Any]) -> list[Any]:
        passing(LONG_S)
        return think(runtime, segments)

    monkeypatch.setattr(Runtime, "think", slow)
    async with (
        running_worker(load_engine, slots=2, no_admission=no_admission) as worker,
        channel_to(worker.address) as channel,
    ):
        talking = await Caller(channel).ready()
        for number in range(1, UNITS + 1):
            await talking.unit(number)

        assert await refusal(worker, Caller(channel)) == ("" if no_admission else Reason.NO_FREE_SLOT)
