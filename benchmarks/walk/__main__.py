"""Prints the way of a unit: `python -m benchmarks.walk [--document]`.

A spoken question goes through worker and adapter as a user starts them, with the shipped model; each notes
which functions of ours are called. Modules are printed in the order in which a listening and a speaking unit
reach them. `--document` writes them into `docs/unit.md` too. Exit code 1 if a way is longer than its goal.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from antiphon.audio.wav import read_wav
from antiphon_command.bench.talker import script
from benchmarks.load.processes import Process, running
from benchmarks.walk import document
from benchmarks.walk.conversation import Kind, Unit, converse
from benchmarks.walk.document import Leg
from benchmarks.walk.way import Call, Span, caused, parted, read, way

QUESTION: Final = Path(__file__).parents[2] / "clients/recordings/joke.wav"
ANSWERS: Final = "ws_adapter.worker.transport.call"
"""The module that writes units to the worker and reads its answers."""

QUIET: Final = ("--log-level", "warning")
QUIET_BEFORE: Final = 2
"""Seconds of silence before the question, and behind it."""
QUIET_AFTER: Final = 5

SETTLE_S: Final = 1.0
"""The seconds that the processes may take to find each other."""
IDLE_S: Final = 2.5
"""The idle seconds, before the conversation and after it, that show the processes' background work."""
GOALS: Final = (14, 20, 12)
"""The goals for a listening unit, the cost of every second of every conversation.

A speaking unit adds only parts of the model: sampler, tokenizer, speech head, vocoder.
"""

SAVE_S: Final = 30.0
"""The longest that a process may take to write down its calls."""


def walk() -> dict[Kind, list[Leg]]:
    """Send the question and follows its units."""
    seconds, last = script(read_wav(QUESTION))
    said = [seconds[-1]] * QUIET_BEFORE + seconds[: last + 1 + QUIET_AFTER]
    with TemporaryDirectory(prefix="antiphon-walk-") as folder:
        files = {name: Path(folder) / f"{name}.json" for name in ("worker", "adapter")}
        traced = "benchmarks.walk.traced"
        command = ("antiphon_command", "worker", *QUIET, "--listen", "127.0.0.1:0", "--slots", "1")
        with running(traced, str(files["worker"]), *command) as worker:
            command = ("antiphon_command", "adapter", *QUIET, "--worker", worker.address, "--port", "0")
            with running(traced, str(files["adapter"]), *command) as adapter:
                time.sleep(SETTLE_S)
                begin = time.monotonic()
                time.sleep(IDLE_S)
                alone = Span(begin, time.monotonic())
                units = asyncio.run(converse(f"ws://{adapter.address}", said, SETTLE_S + IDLE_S))
                now = time.monotonic()
                return legs(
                    units,
                    (alone, Span(now - IDLE_S, now)),
                    noted(adapter, files["adapter"]),
                    noted(worker, files["worker"]),
                )


def noted(process: Process, file: Path) -> list[Call]:
    """Return the calls in a process until now. Raises `TimeoutError`."""
    os.kill(process.pid, signal.SIGUSR1)
    deadline = time.monotonic() + SAVE_S
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file.stem} does not tell what it has called")
        time.sleep(0.05)
    return read(file)


def legs(
    units: Sequence[Unit], idle: Sequence[Span], adapter: Sequence[Call], worker: Sequence[Call]
) -> dict[Kind, list[Leg]]:
    """Return the parts of the way for each kind of unit."""
    found = {}
    for kind in Kind:
        chosen = [unit for unit in units if unit.kind is kind]
        ways = [parted(calls, ANSWERS) for calls in caused(adapter, chosen, idle)]
        most = GOALS if kind is Kind.LISTENS else (None, None, None)
        found[kind] = [
            Leg("adapter, in", most[0], way([inwards for inwards, _ in ways])),
            Leg("worker", most[1], way(caused(worker, chosen, idle))),
            Leg("adapter, out", most[2], way([outwards for _, outwards in ways])),
        ]
    return found


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walk", description="The way of a unit.")
    parser.add_argument("--document", action="store_true", help="write docs/unit.md, too")
    given = parser.parse_args()
    found = walk()
    for kind, parts in found.items():
        print(f"A {kind} unit")
        for leg in parts:
            print(f"  {leg}", *(f"    {name}" for name in leg.way.modules), sep="\n")
    if given.document:
        document.write(found)
    return 0 if all(leg.is_short for parts in found.values() for leg in parts) else 1


if __name__ == "__main__":
    sys.exit(main())
