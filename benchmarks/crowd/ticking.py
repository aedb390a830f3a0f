"""An engine that ticks without an end, and gRPC streams in the same process.

`python -m benchmarks.crowd.ticking`; prints `ready on <address>` of the streams, which are those of
`benchmarks.crowd.echo`. The engine's thread is pinned to the first processor and everything else to the last.
Each line on its standard input is answered by `seconds units processor`: what time it is, how
many units of workload W the engine has done, and its thread's processor time.
"""

import asyncio
import os
import sys
import threading
import time
from typing import Any, Final

import torch

from benchmarks.crowd import echo, workload
from benchmarks.crowd.conversations import seconds_of_speech
from benchmarks.crowd.scripted import script
from benchmarks.load.processes import OTHER_CPU, TESTED_CPU
from inference_service.api.setups import DuplexSettings, DuplexSetup, UnitInput, UnitOverrides
from inference_service.checkpoints.location import find
from inference_service.engine.session import QueuedUnit, Session
from inference_service.engine.tick import Tick
from inference_service.families import table

SESSIONS: Final = 8


class Ticking:
    """Conversations one unit of which follows the other, with no caller."""

    def __init__(self) -> None:
        self.units = 0
        self._audio = seconds_of_speech()
        torch.set_num_threads(1)
        runtime: Any = table.load(find("antiphon-mini"), torch.device("cpu"))(SESSIONS)
        script(runtime)
        setup = DuplexSetup("", DuplexSettings(force_listen_count=0), runtime.info.window, seed=1)
        self._sessions: list[Session[Any]] = []
        for slot in range(SESSIONS):
            name = workload.name(slot * workload.CYCLE // SESSIONS, slot)
            session = runtime.open(name, slot, setup, lambda event: None)
            session.preprocessor.begin()
            runtime.start(session)
            self._sessions.append(session)
        self._numbers = [0] * SESSIONS
        self._tick = Tick(runtime)

    @torch.inference_mode()
    def run(self) -> None:
        """Until the process ends."""
        os.sched_setaffinity(0, {TESTED_CPU})
        while True:
            for session in self._sessions:
                if session.queue.first is None:
                    self._next(session)
                session.events.clear()
            self._tick.run(self._sessions)

    def _next(self, session: Session[Any]) -> None:
        self._numbers[session.slot] += 1
        self.units += 1
        number = self._numbers[session.slot]
        second = UnitInput(self._audio[number % len(self._audio)])
        heard = session.preprocessor.prepare(second)
        now = time.monotonic()
        session.queue.prefill(QueuedUnit(number, heard, now, overrides=UnitOverrides(), finalize=True))


def main() -> None:
    """Serves and ticks until it is told to stop."""
    os.sched_setaffinity(0, {OTHER_CPU})
    with torch.inference_mode():
        ticking = Ticking()
    engine = threading.Thread(target=ticking.run, daemon=True)

    def answer() -> None:
        assert engine.ident is not None
        clock = time.pthread_getcpuclockid(engine.ident)
        for _ in sys.stdin:
            print(time.monotonic(), ticking.units, time.clock_gettime(clock), flush=True)

    engine.start()
    echo.answer = answer
    asyncio.run(echo.main())
    os._exit(0)  # the engine's thread is in the middle of a tick


if __name__ == "__main__":
    main()
