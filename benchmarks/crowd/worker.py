"""The worker under test: `antiphon worker` with scripted output, which reports its CPU times.

`python -m benchmarks.crowd.worker [--slots N] [--model NAME] [--ear fast] [--free] [--unmetered]
[--engine-cpu N]` prints `ready on <address>`. It answers each line on standard input with a `Spent` as JSON.
With `--free` the output is the model's own. `--engine-cpu` pins the engine's thread to a CPU. `--unmetered`
measures and answers nothing.
"""

import argparse
import asyncio
import inspect
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.crowd.scripted import script
from inference_service.app import freeze_loaded_objects, serve
from inference_service.checkpoints.location import find
from inference_service.engine.engine import Inbox, LiveEngine, Order
from inference_service.engine.runtime import Runtime
from inference_service.families import table
from inference_service.families.warmup import warm_up
from inference_service.interface.engine import Deliver, Engine, OnFatal
from inference_service.media.mel import MelStream
from inference_service.options import EARS, WorkerOptions
from inference_service.session.admission import Admission

_NOT_COMPUTING = ("open", "clear")


@dataclass(frozen=True)
class Spent:
    """Times since the start in seconds: CPU times, except `waited`."""

    process: float
    """The time of all threads."""
    engine: float
    """The time of the engine's thread."""
    model: float
    """The part of `engine` in the runtime's methods: encoder, forwards, scoring, speech, vocoder."""
    features: float = 0.0
    """The time to compute audio features, in any thread."""
    waited: float = 0.0
    """The wall time in which the engine's thread had work and a free CPU, but did not run."""


class Meter:
    """A meter of the CPU time in a runtime's methods; only the engine's thread may call them."""

    def __init__(self, runtime: Runtime) -> None:
        self.seconds = 0.0
        self._depth = 0
        for name, method in inspect.getmembers(runtime, inspect.ismethod):
            if not name.startswith("_") and name not in _NOT_COMPUTING:
                setattr(runtime, name, self._measured(method))

    def _measured(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*args: Any, **named: Any) -> Any:
            since, self._depth = time.thread_time(), self._depth + 1
            try:
                return method(*args, **named)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.thread_time() - since

        return measured


class FeatureMeter:
    """A meter of the CPU time to compute audio features, in any thread."""

    def __init__(self) -> None:
        self.seconds = 0.0
        feed = MelStream.feed

        def measured(stream: MelStream, pcm: Any) -> Any:
            since = time.thread_time()
            try:
                return feed(stream, pcm)
            finally:
                self.seconds += time.thread_time() - since

        setattr(MelStream, "feed", measured)  # noqa: B010 - a method is no variable to mypy


class IdleMeter:
    """A meter of the seconds in which the engine's thread waits for orders."""

    def __init__(self) -> None:
        self.seconds = 0.0
        take = Inbox.take

        def measured(inbox: Inbox, wait: bool) -> Order | None:
            since = time.monotonic()
            try:
                return take(inbox, wait)
            finally:
                if wait:
                    self.seconds += time.monotonic() - since

        setattr(Inbox, "take", measured)  # noqa: B010 - a method is no variable to mypy


def pinned(thread: threading.Thread, cpu: int | None) -> threading.Thread:
    """Pin a thread to `cpu` if given; return the thread."""
    if cpu is not None and thread.native_id is not None:
        os.sched_setaffinity(thread.native_id, {cpu})
    return thread


def waited_for_processor(thread: threading.Thread) -> float:
    """Return the seconds that a thread of this process waited for a busy processor (Linux)."""
    _, queued, _ = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()
    return int(queued) / 1e9


def spent_by(thread: threading.Thread) -> float:
    """Return the CPU time of a thread in seconds."""
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def _engine_thread() -> threading.Thread:
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "engine")
    return thread


class Reporter:
    """A reporter that answers lines of standard input with a `Spent`."""

    def __init__(self) -> None:
        self.meter: Meter | None = None
        self._features = FeatureMeter()
        self._idle = IdleMeter()
        self._began = 0.0

    def begin(self) -> None:
        """Store the start time; call it before the engine's thread starts."""
        self._began = time.monotonic()

    def listen(self) -> None:
        """Start a thread that answers every line on standard input."""
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        for _ in sys.stdin:
            print(json.dumps(asdict(self._spent())), flush=True)

    def _spent(self) -> Spent:
        assert self.meter is not None
        thread, now = _engine_thread(), time.monotonic()
        engine, queued = spent_by(thread), waited_for_processor(thread)
        waited = now - self._began - self._idle.seconds - engine - queued
        return Spent(time.process_time(), engine, self.meter.seconds, self._features.seconds, waited)


async def main() -> int:
    """Serve until a signal; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--model", default="antiphon-mini")
    parser.add_argument("--ear", choices=EARS)
    parser.add_argument("--free", action="store_true")
    parser.add_argument("--unmetered", action="store_true")
    parser.add_argument("--engine-cpu", type=int)
    arguments = parser.parse_args()
    reporter = None if arguments.unmetered else Reporter()
    # The benchmark measures the capacity, so admission control is off.
    setattr(Admission, "has_time", lambda _: True)  # noqa: B010 - a method is no variable to mypy

    def load(options: WorkerOptions, deliver: Deliver, on_fatal: OnFatal) -> Engine:
        torch.set_num_threads(1)
        build = table.load(find(options.model), torch.device(options.device), ear=arguments.ear)
        warm_up(build(1))
        runtime: Any = build(arguments.slots)
        if not arguments.free:
            script(runtime)
        if reporter is not None:
            reporter.meter = Meter(runtime)
            reporter.begin()
        engine = LiveEngine(runtime, arguments.slots, deliver, on_fatal)
        pinned(_engine_thread(), arguments.engine_cpu)
        return engine

    with tempfile.TemporaryDirectory() as folder:
        options = WorkerOptions(
            listen=f"unix:{folder}/worker.sock", slots=arguments.slots, model=arguments.model
        )
        if reporter is not None:
            reporter.listen()

        def ready(address: str) -> None:
            freeze_loaded_objects()
            print(f"ready on {address}", flush=True)

        return await serve(options, factory=load, on_ready=ready)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
