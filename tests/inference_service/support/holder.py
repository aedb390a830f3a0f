"""A caller process that brings a session into a state, reports it, and stays there until it is killed.

python -m tests.inference_service.support.holder ADDRESS STATE
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from inference_service.session.units import Stream
from tests.inference_service.support.caller import Caller, channel_to, soon
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import ScriptedEngine, hang, listen

STATES = ("attaching", "configuring", "active", "prefill", "generate", "finalize", "closing")
THERE = "there"
ROOT = Path(__file__).parents[3]


def engine_for(state: str, slots: int = 1) -> ScriptedEngine:
    """Return an engine in which a session that is brought to `state` stays there."""
    play = hang(state) if state in ("prefill", "generate", "finalize") else listen()
    return ScriptedEngine(play, slots=slots, slow_cleanup=state == "closing")


def is_there(state: str, engine: ScriptedEngine) -> bool:
    """Whether the engine's newest session has reached `state`, as far as the engine can know."""
    match state:
        case "attaching" | "configuring":
            return True
        case "active":
            return bool(engine.sessions)
        case "closing":
            return engine.session.is_closing
        case _:
            return (state, 1) in [call[:2] for call in engine.session.calls]


async def bring_to(state: str, caller: Caller) -> None:
    """Bring a session to `state`, where it stays if the worker's engine comes from `engine_for`."""
    if state == "attaching":
        await caller.open(Stream.PREFILL)
        return
    await caller.open()
    if state == "configuring":
        return
    await caller.configure()
    if state == "closing":
        await caller.half_close(Stream.PREFILL)
    elif state != "active":
        await caller.send_unit(1)


@asynccontextmanager
async def holding(address: str, state: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a process that holds a session in `state`; kill it at the end of the block."""
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, address, state, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            assert (await holder.stdout.readline()).decode().strip() == THERE
        yield holder
    finally:
        if holder.returncode is None:
            holder.kill()
        await soon(holder.wait())


async def _hold(address: str, state: str) -> None:
    async with channel_to(address) as channel:
        caller = Caller(channel)
        await bring_to(state, caller)
        print(THERE, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_hold(*sys.argv[1:]))
