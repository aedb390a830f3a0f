"""The path of a unit: `python -m benchmarks.walk [--document]`.

The command sends a spoken question to an adapter and a worker with the shipped model. Both processes record
the calls of Antiphon's functions. The command prints the modules in the order in which a listening and a
speaking unit reach them. `--document` also writes them into `docs/unit.md`. The exit code is 1 if a part of
the path is longer than its goal.
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
from benchmarks.walk.unit_path import Call, Span, caused, parted, read, unit_path

QUESTION: Final = Path(__file__).parents[2] / "clients/recordings/joke.wav"
ANSWERS: Final = "ws_adapter.worker.transport.call"
"""The module that writes units to the worker and reads its answers."""

QUIET: Final = ("--log-level", "warning")
QUIET_BEFORE: Final = 2
"""Seconds of silence before the question."""
QUIET_AFTER: Final = 5
"""Seconds of silence after the question."""

SETTLE_S: Final = 1.0
"""The seconds in which the adapter connects to the worker."""
IDLE_S: Final = 2.5
"""The idle seconds before and after the conversation, for the calls of background work."""
GOALS: Final = (14, 20, 12)
"""The largest number of modules in each part of the path of a listening unit.

There is no goal for a speaking unit. It adds only modules of the model: sampler, tokenizer, speech head,
vocoder.
"""

SAVE_S: Final = 30.0
"""The longest that a process may take to write its calls, in seconds."""


def walk() -> dict[Kind, list[Leg]]:
    """Send the question; return the parts of the path for each kind of unit."""
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
            raise TimeoutError(f"{file.stem} has not written its calls within {SAVE_S:g} s")
        time.sleep(0.05)
    return read(file)


def legs(
    units: Sequence[Unit], idle: Sequence[Span], adapter: Sequence[Call], worker: Sequence[Call]
) -> dict[Kind, list[Leg]]:
    """Return the parts of the path for each kind of unit."""
    found = {}
    for kind in Kind:
        chosen = [unit for unit in units if unit.kind is kind]
        paths = [parted(calls, ANSWERS) for calls in caused(adapter, chosen, idle)]
        most = GOALS if kind is Kind.LISTENS else (None, None, None)
        found[kind] = [
            Leg("adapter, in", most[0], unit_path([inwards for inwards, _ in paths])),
            Leg("worker", most[1], unit_path(caused(worker, chosen, idle))),
            Leg("adapter, out", most[2], unit_path([outwards for _, outwards in paths])),
        ]
    return found


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walk", description="The path of a unit.")
    parser.add_argument("--document", action="store_true", help="also write docs/unit.md")
    given = parser.parse_args()
    found = walk()
    for kind, parts in found.items():
        print(f"A {kind} unit")
        for leg in parts:
            print(f"  {leg}", *(f"    {name}" for name in leg.path.modules), sep="\n")
    if given.document:
        document.write(found)
    return 0 if all(leg.is_short for parts in found.values() for leg in parts) else 1


if __name__ == "__main__":
    sys.exit(main())
