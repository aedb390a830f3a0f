"""A worker process with the shipped checkpoint, in which some sessions meet faults; see `faults`.

    python -m tests.support.faulty_worker --listen 127.0.0.1:0 --slots 4

Prints `worker ready on ADDRESS` when it serves.
"""

import argparse
import asyncio
import sys

import torch

from inference_service.app import serve
from inference_service.checkpoints.location import find
from inference_service.engine.engine import LiveEngine
from inference_service.families import table
from inference_service.interface.engine import Deliver, Engine, OnFatal
from inference_service.options import WorkerOptions
from inference_service.session.admission import Admission
from inference_service.session.machine import Limits
from tests.support import faults


def load(options: WorkerOptions, deliver: Deliver, on_fatal: OnFatal) -> Engine:
    torch.set_num_threads(1)
    runtime = table.load(find(options.model), torch.device("cpu"))(options.slots)
    faults.break_in(runtime)
    return LiveEngine(runtime, options.slots, deliver, on_fatal)


def main() -> int:
    parser = argparse.ArgumentParser(description="A worker in which some sessions meet faults.")
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--step-s", type=float, default=Limits.step_s)
    arguments = parser.parse_args()
    # A machine that runs tests may be slow: nobody is kept out for that.
    setattr(Admission, "has_time", lambda _: True)  # noqa: B010 - a method is no variable to mypy
    options = WorkerOptions(listen=arguments.listen, slots=arguments.slots, drain_timeout_s=2.0)
    return asyncio.run(serve(options, factory=load, limits=Limits(step_s=arguments.step_s)))


if __name__ == "__main__":
    sys.exit(main())
