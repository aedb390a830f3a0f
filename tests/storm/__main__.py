"""Ten thousand clients that vanish or flood: `python -m tests.storm [--visits N] [--seed N]` (`make storm`).

Starts a worker and an adapter, lets clients cut their connections in every state, and tells what is left.
Ends with 1 if a slot, a ticket, a file descriptor or a thread is.
"""

import argparse
import asyncio
import sys
import time

from tqdm import tqdm

from tests.conformance.support.stack import Stack, running_stack, scripted_worker
from tests.storm.processes import Holdings, settled
from tests.storm.storm import ADAPTER, WORKER, storm

SLOTS = 8


def _holdings(stack: Stack) -> tuple[Holdings, Holdings]:
    return Holdings.of(stack.process.pid), Holdings.of(stack.worker.process.pid)


def _is_clean(stack: Stack) -> bool:
    queue = stack.ask_http("/api/queue")[1]
    free = stack.ask_http("/ready")[1]["free_slots"]
    return bool(free == SLOTS and queue["queue_length"] == 0 and not queue["running_tasks"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description=__doc__)
    parser.add_argument("--visits", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with (
        scripted_worker(*WORKER, "--slots", str(SLOTS)) as worker,
        running_stack(worker, options=ADAPTER) as stack,
        tqdm(total=given.visits, unit="visit") as bar,
    ):
        asyncio.run(storm(stack.address, 100, seed=0))
        settled(lambda: _is_clean(stack))
        before = _holdings(stack)
        begin = time.monotonic()
        seen = asyncio.run(storm(stack.address, given.visits, given.seed, on_visit=bar.update))
        took = time.monotonic() - begin
        clean = settled(lambda: _is_clean(stack))

        def is_back() -> bool:
            now = _holdings(stack)
            return all(
                a.descriptors <= b.descriptors and a.threads <= b.threads
                for a, b in zip(now, before, strict=True)
            )

        back = settled(is_back)
        after = _holdings(stack)
        quiet = "Traceback" not in stack.log.text and "Traceback" not in worker.log.text
    for name, count in sorted(seen.items()):
        print(f"{count:6d}  {name}")
    print(f"{given.visits} visits in {took:.0f} s, seed {given.seed}")
    for name, was, now in zip(("adapter", "worker"), before, after, strict=True):
        print(f"{name}: {was} before, {now} after")
    print("slots and queue are clean" if clean else "SLOTS OR QUEUE ARE NOT CLEAN")
    print("no traceback in the logs" if quiet else "TRACEBACKS IN THE LOGS")
    return 0 if clean and back and quiet else 1


if __name__ == "__main__":
    sys.exit(main())
