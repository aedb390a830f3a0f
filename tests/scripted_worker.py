"""A worker process that plays a script, for tests that need real processes and signals.

    python -m tests.scripted_worker --listen 127.0.0.1:0 --script talk

Prints `worker ready on ADDRESS` when it serves.
"""

import argparse
import asyncio
import sys

from inference_service.app import serve
from inference_service.options import WorkerOptions
from tests.scripted_engine import TALK, Play, ScriptedEngine, context_full, fails, hang, listen, turn_end

SCRIPTS: dict[str, tuple[Play, ...]] = {
    "listen": (listen(),),
    "talk": TALK,
    "reply": (turn_end("Yes."),),
    "slow": tuple(Play(play.says, play.end, delay_s=0.2) for play in TALK),
    "fail": (fails(),),
    "full": (listen(), listen(), context_full()),
    "hang": (listen(), hang("generate")),
    "fatal": (listen(), Play(breaks_device=True)),
}
"""What can be played; every script begins again at its end."""


def main() -> int:
    """Runs until a signal; returns the worker's exit code."""
    parser = argparse.ArgumentParser(description="A worker that plays a script.")
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--script", choices=sorted(SCRIPTS), default="listen")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--drain-timeout-s", type=float, default=5.0)
    parser.add_argument("--slow-cleanup", action="store_true", help="slots are never clean again")
    arguments = parser.parse_args()
    engine = ScriptedEngine(
        *SCRIPTS[arguments.script],
        slots=arguments.slots,
        repeat=True,
        slow_cleanup=arguments.slow_cleanup,
    )
    options = WorkerOptions(
        listen=arguments.listen, slots=arguments.slots, drain_timeout_s=arguments.drain_timeout_s
    )
    return asyncio.run(serve(options, factory=engine.start))


if __name__ == "__main__":
    sys.exit(main())
