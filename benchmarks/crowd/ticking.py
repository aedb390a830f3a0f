"""An engine and the plain gRPC streams of `benchmarks.crowd.echo` in one process.

`python -m benchmarks.crowd.ticking [--paced] [--slots N] [--engine-cpu N]` prints `ready on <address>` of the
streams.

Without `--paced`, the engine runs units of its own sessions without pauses, from the first line of standard
input on. `--engine-cpu` pins its thread to a CPU. The process answers each line with three numbers: the
monotonic time less the time that the engine's thread waited for a busy CPU, the number of units, and the CPU
time of the engine's thread.

With `--paced`, the engine runs the units that the streams receive, with the output of workload W. The streams
still answer at once. So they run with the CPU caches of a worker, which are full of weights. The process
answers lines like `benchmarks.crowd.worker`.
"""

import argparse
import asyncio
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import torch

from benchmarks.crowd import echo, workload
from benchmarks.crowd.conversations import seconds_of_speech
from benchmarks.crowd.scripted import script
from benchmarks.crowd.worker import Spent, pinned, spent_by, waited_for_processor
from inference_service.checkpoints.location import find
from inference_service.engine.tick import Tick
from inference_service.families import table
from inference_service.interface.setups import (
    DuplexSettings,
    DuplexSetup,
    UnitInput,
    UnitOverrides,
)
from inference_service.session.base.session import QueuedUnit, Session

SESSIONS: Final = 8
"""The number of sessions without pauses."""


class Model:
    """A runtime with sessions that have no client."""

    def __init__(self, slots: int) -> None:
        torch.set_num_threads(1)
        self._runtime: Any = table.load(find("antiphon-mini"), torch.device("cpu"))(slots)
        script(self._runtime)
        self._audio = seconds_of_speech()
        self._tick = Tick(self._runtime)
        self.sessions: dict[int, Session[Any]] = {}

    @property
    def has_work(self) -> bool:
        """Whether a tick would do anything."""
        return self._tick.has_work(self.sessions.values())

    def open(self, name: str) -> None:
        """Open a session in the slot that its id names; end the earlier session of this slot."""
        slot = workload.number(name)
        if slot in self.sessions:
            self.sessions[slot].leave()
            self._runtime.clear(slot)
        setup = DuplexSetup("", DuplexSettings(force_listen_count=0), self._runtime.info.window, seed=1)
        session = self.sessions[slot] = self._runtime.open(name, slot, setup, lambda event: None)
        session.preprocessor.begin()
        self._runtime.start(session)

    def queue(self, session: Session[Any], number: int) -> None:
        """Queue unit `number` with recorded audio, to be generated and finalized."""
        heard = session.preprocessor.prepare(UnitInput(self._audio[number % len(self._audio)]))
        unit = QueuedUnit(number, heard, time.monotonic(), overrides=UnitOverrides(), finalize=True)
        session.queue.prefill(unit)

    def tick(self) -> None:
        """Run one tick for all sessions."""
        self._tick.run(self.sessions.values())
        for session in self.sessions.values():
            session.events.clear()


class UnpacedEngine:
    """An engine that runs units without pauses, pinned to `cpu` if given."""

    def __init__(self, cpu: int | None) -> None:
        self._model = Model(SESSIONS)
        with torch.inference_mode():
            for slot in range(SESSIONS):
                self._model.open(workload.name(slot * workload.CYCLE // SESSIONS, slot))
        self._numbers = [0] * SESSIONS
        self._cpu = cpu

    @torch.inference_mode()
    def _run(self) -> None:
        while True:
            for slot, session in self._model.sessions.items():
                if session.queue.first is None:
                    self._numbers[slot] += 1
                    self._model.queue(session, self._numbers[slot])
            self._model.tick()

    def tell(self) -> None:
        """Answer every line on standard input; the first one starts the engine."""
        thread: threading.Thread | None = None
        for _ in sys.stdin:
            thread = thread or pinned(_engine(self._run), self._cpu)
            busy = time.monotonic() - waited_for_processor(thread)
            print(busy, sum(self._numbers), spent_by(thread), flush=True)


class PacedEngine:
    """An engine that runs the units passed to `hear`."""

    def __init__(self, slots: int) -> None:
        self._model = Model(slots)
        self._units: deque[tuple[str, int]] = deque()
        self._came = threading.Condition()
        self._thread = _engine(self._run)

    def hear(self, name: str, number: int) -> None:
        """Accept a unit of the session `name`."""
        with self._came:
            self._units.append((name, number))
            self._came.notify()

    @torch.inference_mode()
    def _run(self) -> None:
        while True:
            with self._came:
                while not self._units and not self._model.has_work:
                    self._came.wait()
                units, self._units = self._units, deque()
            for name, number in units:
                if number == 1:
                    self._model.open(name)
                self._model.queue(self._model.sessions[workload.number(name)], number)
            self._model.tick()

    def tell(self) -> None:
        """Answer every line on standard input with a `Spent` as JSON."""
        for _ in sys.stdin:
            engine = spent_by(self._thread)
            print(json.dumps(asdict(Spent(time.process_time(), engine, engine))), flush=True)


def _engine(run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, name="engine", daemon=True)
    thread.start()
    return thread


def main() -> None:
    """Serve and tick until a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--paced", action="store_true")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--engine-cpu", type=int)
    arguments = parser.parse_args()
    if arguments.paced:
        paced = PacedEngine(arguments.slots)
        asyncio.run(echo.main(paced.hear, paced.tell))
    else:
        asyncio.run(echo.main(tell=UnpacedEngine(arguments.engine_cpu).tell))
    os._exit(0)  # the engine's thread never ends


if __name__ == "__main__":
    main()
