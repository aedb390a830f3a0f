"""Adapter and worker in the process of the test, on real sockets and with a manual clock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from inference_service.interface.engine import ModelInfo
from inference_service.interface.setups import Mode
from tests.conformance.support.client import Client
from tests.support.scripted_engine import INFO, ScriptedEngine, ScriptedSession, running_worker
from tests.ws_adapter.support.stage import ManualClock, Stage, running_adapter

SEEING = replace(INFO, sees=True, modes=frozenset({Mode.AUDIO, Mode.VIDEO}))


@dataclass(frozen=True)
class Clockwork:
    """A running adapter whose time stands still until `advance`."""

    stage: Stage
    clock: ManualClock
    engine: ScriptedEngine

    async def advance(self, seconds: float) -> None:
        """Advance the clock; timers that become due run in order."""
        await self.clock.advance(seconds)

    @property
    def session(self) -> ScriptedSession:
        """The newest session of the worker."""
        return self.engine.session

    @asynccontextmanager
    async def client(self, target: str = "/v1/realtime?mode=audio") -> AsyncIterator[Client]:
        """A client at `target`."""
        url = self.stage.address.replace("http://", "ws://") + target
        async with self.stage.client(url) as client:
            yield Client(client.socket)


@asynccontextmanager
async def clockwork_before(target: str) -> AsyncIterator[Clockwork]:
    """Run an adapter with a manual clock in front of the running worker at `target`."""
    clock = ManualClock()
    async with running_adapter(target, clock=clock) as stage:
        yield Clockwork(stage, clock, ScriptedEngine())


@asynccontextmanager
async def clockwork(slots: int = 2, info: ModelInfo = SEEING, **options: Any) -> AsyncIterator[Clockwork]:
    """Run an adapter with these options in front of a worker; system prompts are scripts."""
    clock = ManualClock()
    engine = ScriptedEngine(slots=slots, info=info, prompted=True)
    async with running_worker(engine, slots=slots) as worker:
        async with running_adapter(worker.address, clock=clock, **options) as stage:
            yield Clockwork(stage, clock, engine)
