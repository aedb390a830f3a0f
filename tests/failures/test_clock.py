"""A wall clock that jumps: nothing but its stamps is read from it."""

import time
from types import SimpleNamespace

import pytest

from tests.support.scripted_engine import ScriptedEngine, running_worker, speak
from tests.ws_adapter.support.conversation import INIT, append
from tests.ws_adapter.support.stage import running_adapter

HOUR_S = 3600.0


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
async def test_a_wall_clock_that_jumps_ends_nothing(jump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ScriptedEngine(speak("word"), repeat=True, slots=1)
    wall, jumped = time.time, False
    monkeypatch.setattr(time, "time", lambda: wall() + (jump_s if jumped else 0.0))
    # gRPC's core reads the system clock, which the test cannot move. Its Python half must agree with it.
    monkeypatch.setattr("grpc.aio._utils.time", SimpleNamespace(time=wall))
    async with running_worker(engine, slots=1) as worker, running_adapter(worker.address) as stage:
        async with stage.client() as client, stage.client() as waiting:
            await client.expect("session.queue_done")
            await client.send(INIT)
            await client.expect("session.created")
            await waiting.expect("session.queued")

            jumped = True

            for _ in range(3):
                await client.send(append())
                await client.expect_until("response.output.delta")
            client.vanish()
            await waiting.expect_until("session.queue_done")
            await stage.until(free_slots=0)
