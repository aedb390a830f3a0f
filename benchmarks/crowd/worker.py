"""The worker under test: `antiphon worker` with scripted words, which tells where its time went.

`python -m benchmarks.crowd.worker [--slots N] [--model NAME] [--free]`; prints `ready on <address>`. With
`--free` the model decides by itself. Each line on its standard input is answered by a line of JSON, see
`Spent`.
"""

import argparse
import asyncio
import inspect
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.crowd.scripted import script
from inference_service.api.engine import Deliver, Engine, OnFatal
from inference_service.app import serve
from inference_service.checkpoints.location import find
from inference_service.engine.engine import LiveEngine
from inference_service.engine.runtime import Runtime
from inference_service.families import table
from inference_service.families.warmup import warm_up
from inference_service.media.mel import MelStream
from inference_service.options import WorkerOptions
from inference_service.session.admission import Admission

_NOT_COMPUTING = ("open", "clear")


@dataclass(frozen=True)
class Spent:
    """Processor seconds since the start."""

    process: float
    """All threads."""
    engine: float
    """The engine's thread."""
    model: float
    """Of that, inside the runtime: forwards, embeddings, scores, speech, sound."""
    features: float = 0.0
    """Making features of sound, which is the model's too, in whichever thread."""


class Meter:
    """Counts the processor time inside a runtime's methods, which only the engine's thread calls."""

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


class Features:
    """Counts the processor time in which sound becomes features, in any thread."""

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


class Reporter:
    """Answers questions about the time spent."""

    def __init__(self) -> None:
        self.meter: Meter | None = None
        self._features = Features()

    def listen(self) -> None:
        """Answers every line that comes, on a thread of its own."""
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        for _ in sys.stdin:
            print(json.dumps(asdict(self._spent())), flush=True)

    def _spent(self) -> Spent:
        (engine,) = (thread for thread in threading.enumerate() if thread.name == "engine")
        assert engine.ident is not None
        clock = time.pthread_getcpuclockid(engine.ident)
        assert self.meter is not None
        engine = time.clock_gettime(clock)
        return Spent(time.process_time(), engine, self.meter.seconds, self._features.seconds)


async def main() -> int:
    """Serves until it is told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--model", default="antiphon-mini")
    parser.add_argument("--free", action="store_true")
    arguments = parser.parse_args()
    reporter = Reporter()
    # How many are carried is what is measured: nobody is kept out.
    setattr(Admission, "has_time", lambda _: True)  # noqa: B010 - a method is no variable to mypy

    def load(options: WorkerOptions, deliver: Deliver, on_fatal: OnFatal) -> Engine:
        torch.set_num_threads(1)
        build = table.load(find(options.model), torch.device(options.device))
        warm_up(build(1))
        runtime: Any = build(arguments.slots)
        if not arguments.free:
            script(runtime)
        reporter.meter = Meter(runtime)
        return LiveEngine(runtime, arguments.slots, deliver, on_fatal)

    with tempfile.TemporaryDirectory() as folder:
        options = WorkerOptions(
            listen=f"unix:{folder}/worker.sock", slots=arguments.slots, model=arguments.model
        )
        reporter.listen()
        return await serve(
            options, factory=load, on_ready=lambda address: print(f"ready on {address}", flush=True)
        )


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
