"""Memory growth of a worker with its sessions and units: `python -m benchmarks.worker_churn`.

The command runs short sessions of one unit on a worker process. After every 500 sessions it prints the
resident memory and the growth per session. It measures a scripted worker, which shows the growth by calls and
sessions, and then the shipped checkpoint, which adds the engine. The second worker also has a session of
3,000 units with the same output; the scripted one has none, because it stores its input. `--json FILE` writes
the figures; those of the last run are in `results/growth.json`.
"""

import argparse
import asyncio
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

import grpc

from benchmarks.worker_churn.growth import SLOTS, measure, measure_units

WORKERS: Final = {
    "scripted": ("tests.support.scripted_worker",),
    "antiphon-mini": ("antiphon_command", "worker", "--log-level", "error"),
}
REAL: Final = "antiphon-mini"
READY: Final = "worker ready on "


@contextmanager
def running(name: str, socket: Path) -> Iterator[int]:
    """Run a worker that listens on `socket`; yield its process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", *WORKERS[name], "--listen", f"unix:{socket}", "--slots", str(SLOTS)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith(READY):
            raise SystemExit(f"The worker did not start: {line or 'no output'}")
        yield process.pid
    finally:
        process.terminate()
        process.wait(timeout=60)


def main() -> None:
    """Measure and print the growth; write it with `--json`."""
    parser = argparse.ArgumentParser(description="Memory growth of a worker with its sessions and units.")
    parser.add_argument(
        "--worker", choices=WORKERS, action="append", help="only this worker; may be repeated"
    )
    parser.add_argument("--sessions", type=int, default=3000)
    parser.add_argument("--units", type=int, default=3000, help="units of the long session (default 3000)")
    parser.add_argument("--every", type=int, default=500)
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    points, of_units = {}, {}
    for name in arguments.worker or WORKERS:
        print(name)
        with tempfile.TemporaryDirectory() as folder:
            socket = Path(folder) / "worker.sock"
            with running(name, socket) as pid:
                points[name] = asyncio.run(measure(pid, socket, arguments.sessions, arguments.every))
                if name == REAL:
                    of_units[name] = asyncio.run(measure_units(pid, socket, arguments.units, arguments.every))
    if arguments.json:
        result = {
            "python": platform.python_version(),
            "grpcio": grpc.__version__,
            "sessions": {name: [asdict(point) for point in found] for name, found in points.items()},
            "units": {name: [asdict(point) for point in found] for name, found in of_units.items()},
        }
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
