"""Capacity of a GPU in conversations: `python -m benchmarks.gpu_crowd [--size small] [--device cpu]`.

The command first compares the device with the CPU in float32. Then it writes a checkpoint of random weights
in the published layout of MiniCPM-o 4.5, or its missing files, and loads it like `antiphon worker`. Sessions
of workload W run in real time, with audio and video, with and without a window. For each kind of session the
command finds the largest number of sessions with less than 1 % late units, and the time of each part of a
tick. No trial begins later than `--minutes` after the model has loaded; each kind of session gets an equal
share of this time.

The command appends every finished trial to a file. After an interruption, the same command repeats no trial
that the file has with the same settings. At full size it writes `results/crowd.json`.
"""

import argparse
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final

import torch

from benchmarks.full_size.folder import FolderRefused, write_folder
from benchmarks.full_size.sizes import FULL, TENTH, TINY
from benchmarks.gpu_crowd import report
from benchmarks.gpu_crowd.agreement import agreements
from benchmarks.gpu_crowd.journal import Journal
from benchmarks.gpu_crowd.search import MOST, SessionKind, largest, run
from benchmarks.gpu_crowd.worker import Worker
from inference_service.errors import ConfigurationError
from inference_service.models.errors import CheckpointError

BUILD: Final = Path(__file__).parents[2] / "build"
SIZES: Final = {
    "full": (FULL, BUILD / "full-size"),
    "tenth": (TENTH, BUILD / "tenth"),
    "small": (TINY, BUILD / "tiny"),
}
"""The sizes of the model, and the default folder of each."""
STEP: Final = 4
"""The precision of the search, in sessions."""


def main() -> int:
    """Measure and print.

    Return 1 if the results of the device and of the CPU differ, 2 if the model does not load, otherwise 0.
    """
    given = _parser().parse_args()
    device, dtype = torch.device(given.device), getattr(torch, given.dtype)
    if device.type == "cpu":
        torch.set_num_threads(1)
    found = agreements(device, dtype)
    size, folder = SIZES[given.size]
    folder = given.folder or folder
    try:
        write_folder(folder, size)
        worker = Worker(folder, given.device, given.dtype, given.context_limit, given.most)
    except (FolderRefused, CheckpointError, ConfigurationError) as error:
        print(error, file=sys.stderr)
        return 2
    begin = time.monotonic()
    settings = {
        "model": size.name,
        "machine": report.machine(worker.device),
        **{name: getattr(given, name) for name in ("dtype", "seconds", "aged", "context_limit")},
    }
    journal = Journal(given.trials, settings)
    rows: list[report.Row] = []
    kinds = [SessionKind(sees, slides) for sees, slides in product((False, True), (True, False))]
    try:
        for number, kind in enumerate(kinds):
            now = time.monotonic()
            until = now + (begin + 60 * given.minutes - now) / (len(kinds) - number)
            make = partial(run, worker, kind=kind, seconds=given.seconds, aged=given.aged, seed=1)
            trials = largest(
                lambda sessions, kind=kind, make=make: journal.attempt(kind, sessions, make),  # type: ignore[misc]
                given.first,
                worker.slots,
                STEP,
                partial(_is_past, until - 2 * given.seconds),
            )
            rows.append(report.Row(kind, worker.slots, trials))
            print(f"{time.monotonic() - begin:.0f} s: {rows[-1]}", file=sys.stderr, flush=True)
    finally:
        worker.close()
    print(report.report(size.name, device, rows, found))
    if given.size == "full":
        report.write(report.figures(size.name, device, rows, found))
    return 0 if all(it.holds for it in found) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--size", default="full", choices=SIZES, help="full needs 19.5 GB of disk")
    parser.add_argument("--folder", type=Path, help="folder of the checkpoint (default: in build/)")
    parser.add_argument(
        "--trials",
        type=Path,
        default=BUILD / "gpu_crowd.jsonl",
        help="file of finished trials; remove it to repeat them",
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each trial")
    parser.add_argument("--aged", type=int, default=30, help="units of each session before a trial")
    parser.add_argument("--first", type=int, default=16, help="sessions of the first trial")
    parser.add_argument("--most", type=int, default=MOST, help="the largest number of sessions")
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="minutes after loading in which trials may begin"
    )
    parser.add_argument("--context-limit", type=int, default=4096)
    return parser


def _is_past(moment: float) -> bool:
    return time.monotonic() > moment


if __name__ == "__main__":
    sys.exit(main())
