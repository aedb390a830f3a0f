"""Prints the way of a unit: `python -m benchmarks.walk [--markdown]`.

A spoken question goes through worker and adapter as a user starts them, with the shipped model; each notes
which functions of ours are called. Modules are printed in the order in which a listening and a speaking unit
reach them. Exit code 1 if a way is longer than its goal.
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
from typing import Final, NamedTuple

from antiphon.audio.wav import read_wav
from antiphon.bench.talker import script
from benchmarks.load.processes import Process, running
from benchmarks.walk.conversation import Kind, Unit, converse
from benchmarks.walk.way import Call, Way, of_unit, parted, read, way

QUESTION: Final = Path(__file__).parents[2] / "tests/recordings/joke.wav"
ANSWERS: Final = "ws_adapter.worker.transport.http2"
"""Where the adapter reads what a worker answers."""

QUIET: Final = ("--log-level", "warning")
SAVE_S: Final = 30.0
"""The longest that a process may take to write down its calls."""


class Leg(NamedTuple):
    """A part of the way, and the most modules that it may have."""

    name: str
    most: int
    way: Way


def walk() -> dict[Kind, list[Leg]]:
    """Sends the question and follows its units."""
    seconds, _ = script(read_wav(QUESTION))
    with TemporaryDirectory(prefix="antiphon-walk-") as folder:
        files = {name: Path(folder) / f"{name}.json" for name in ("worker", "adapter")}
        traced = "benchmarks.walk.traced"
        command = ("antiphon.cli", "worker", *QUIET, "--listen", "127.0.0.1:0", "--slots", "1")
        with running(traced, str(files["worker"]), *command) as worker:
            command = ("antiphon.cli", "adapter", *QUIET, "--worker", worker.address, "--port", "0")
            with running(traced, str(files["adapter"]), *command) as adapter:
                units = asyncio.run(converse(f"ws://{adapter.address}", seconds))
                return legs(units, noted(adapter, files["adapter"]), noted(worker, files["worker"]))


def noted(process: Process, file: Path) -> list[Call]:
    """What was called in a process until now. Raises `TimeoutError`."""
    os.kill(process.pid, signal.SIGUSR1)
    deadline = time.monotonic() + SAVE_S
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file.stem} does not tell what it has called")
        time.sleep(0.05)
    return read(file)


def legs(units: Sequence[Unit], adapter: Sequence[Call], worker: Sequence[Call]) -> dict[Kind, list[Leg]]:
    """The parts of the way for each kind of unit."""
    found = {}
    for kind in Kind:
        chosen = [unit for unit in units if unit.kind is kind]
        ways = [parted(of_unit(adapter, unit), ANSWERS) for unit in chosen]
        found[kind] = [
            Leg("adapter, in", 14, way([inwards for inwards, _ in ways])),
            Leg("worker", 20, way([of_unit(worker, unit) for unit in chosen])),
            Leg("adapter, out", 12, way([outwards for _, outwards in ways])),
        ]
    return found


def main() -> int:
    """Runs from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walk", description="The way of a unit.")
    parser.add_argument("--markdown", action="store_true", help="as docs/unit.md quotes it")
    given = parser.parse_args()
    found = walk()
    is_short = True
    for kind, parts in found.items():
        print(f"A {kind} unit")
        for leg in parts:
            is_short &= len(leg.way.modules) <= leg.most
            title = (
                f"{leg.name}: {len(leg.way.modules)} modules (at most {leg.most}), "
                f"{leg.way.calls:.0f} calls, {leg.way.handovers:.0f} hand-overs"
            )
            print(f"- {title}" if given.markdown else f"  {title}")
            names = leg.way.modules
            if given.markdown:
                print("  " + ", ".join(f"`{name}`" for name in names))
            else:
                print(*(f"    {name}" for name in names), sep="\n")
    return 0 if is_short else 1


if __name__ == "__main__":
    sys.exit(main())
