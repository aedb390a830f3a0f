"""Finds how many conversations a GPU holds: `python -m benchmarks.gpu_crowd [--size small] [--device cpu]`.

MiniCPM-o 4.5 at full size with random weights, workload W in real time, audio and video, with and without a
window; for each the largest crowd of which less than 1 % of the units is late, and how many memory holds.
First the device is checked against the CPU in float32. With the largest crowd comes what each part of a tick
took. No trial begins after `--minutes`, of which each kind of session has an equal part. Writes
`results/crowd.json` if it ran at full size.
"""

import argparse
import sys
import time
from functools import partial
from itertools import product
from typing import Final

import torch

from benchmarks.gpu_crowd import model, report
from benchmarks.gpu_crowd.agreement import agreements
from benchmarks.gpu_crowd.search import MOST, Way, largest, run
from inference_service.engine.batch.memory import free_bytes

SIZES: Final = {"full": model.full, "small": model.small}
STEP: Final = 4
"""Sessions to within which a crowd is found."""


def main() -> int:
    """Measure and print. Exit code 1 if the device does not compute what the CPU does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--size", default="full", choices=SIZES)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each trial")
    parser.add_argument("--aged", type=int, default=30, help="units that sessions have behind them")
    parser.add_argument("--first", type=int, default=16, help="sessions of the first trial")
    parser.add_argument("--most", type=int, default=MOST, help="sessions at most")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no trial begins")
    parser.add_argument("--context-limit", type=int, default=4096)
    given = parser.parse_args()
    device, dtype = torch.device(given.device), getattr(torch, given.dtype)
    if device.type == "cpu":
        torch.set_num_threads(1)
    begin = time.monotonic()
    found = agreements(device, dtype)
    size = SIZES[given.size]()
    parts = model.components(size, device, dtype, given.context_limit)
    free = free_bytes(device)
    footprint = model.footprint(size, device, dtype, given.context_limit)
    memory = given.most if free is None else footprint.slots_within(free)
    rows: list[report.Row] = []
    ways = [Way(sees, slides) for sees, slides in product((False, True), (True, False))]
    for number, way in enumerate(ways):
        now = time.monotonic()
        until = now + (begin + 60 * given.minutes - now) / (len(ways) - number)
        attempt = partial(run, parts, way=way, seconds=given.seconds, aged=given.aged, seed=1)
        trials = largest(
            attempt, given.first, min(memory, given.most), STEP, partial(_is_past, until - 2 * given.seconds)
        )
        rows.append(report.Row(way, memory, trials))
        print(f"{time.monotonic() - begin:.0f} s: {rows[-1]}", file=sys.stderr, flush=True)
    print(report.report(size.name, device, rows, found))
    if given.size == "full":
        report.write(report.figures(size.name, device, rows, found))
    return 0 if all(it.holds for it in found) else 1


def _is_past(moment: float) -> bool:
    return time.monotonic() > moment


if __name__ == "__main__":
    sys.exit(main())
