"""Test of MiniCPM-o 4.5 at full size: `python -m benchmarks.full_size FOLDER [--size full] [--device cpu]`.

The command writes a checkpoint of random weights in the published layout into FOLDER, or its missing files.
Then `antiphon worker --dtype bfloat16 --kernels off` serves it on the device, and answers a listening unit, a
speaking unit and a chat with a picture. The command prints the time of each, and the peak host memory of the
worker. On the CPU it compares this memory with the prediction of `antiphon check-config`.

The exit code is 1 if an answer is wrong or, on the CPU, memory differs by more than 5 % (10 % with `--size
tenth`). It is 2 if the folder cannot be written or the worker does not start.
"""

import argparse
import asyncio
import shutil
import sys
import time
from pathlib import Path
from typing import Final

import grpc
import torch

from benchmarks.full_size.conversation import Answer, WrongAnswer, converse
from benchmarks.full_size.folder import FolderRefused, write_folder
from benchmarks.full_size.patient_worker import PATIENCE_S
from benchmarks.full_size.sizes import SIZES
from benchmarks.full_size.worker import CONTEXT_LIMIT, Peak, WorkerEnded, serving
from inference_service.engine.batch.memory import held_bytes
from inference_service.families import table
from inference_service.families.memory.footprint import gib
from inference_service.kernels import selection

CPU: Final = torch.device("cpu")


def main() -> int:
    """Write the model, serve it and measure it; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="folder of the checkpoint")
    parser.add_argument("--size", default="full", choices=SIZES, help="full needs 19.5 GB of disk")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 ... (default cpu)")
    parser.add_argument("--write-only", action="store_true", help="do not serve it")
    parser.add_argument("--remove", action="store_true", help="remove the folder at the end")
    given = parser.parse_args()
    began = time.monotonic()
    try:
        written = write_folder(given.folder, SIZES[given.size])
        _say(began, f"{written.nbytes / 1e9:.1f} GB, {written.kept} of {written.files} files were there")
        return 0 if given.write_only else _serve(given.folder, given.size, given.device, began)
    except (FolderRefused, WorkerEnded) as error:
        print(error, file=sys.stderr)
        return 2
    except (WrongAnswer, grpc.RpcError, TimeoutError) as error:
        print(f"A request to the worker failed: {error!r}", file=sys.stderr)
        return 1
    finally:
        if given.remove:
            shutil.rmtree(given.folder, ignore_errors=True)


def _serve(folder: Path, size: str, device: str, began: float) -> int:
    predicted = predicted_bytes(folder) if device == "cpu" else None
    if predicted is not None:
        _say(began, f"check-config predicts {gib(predicted)}")
    with serving(folder, device) as worker:
        _say(began, "the worker is ready")
        answers = asyncio.run(
            converse(worker.address, PATIENCE_S, lambda it: _say(began, f"{it.asked} was answered"))
        )
        peak = worker.peak()
    print(report(SIZES[size].name, device, answers, peak, predicted))
    return 0 if predicted is None or abs(peak.resident / predicted - 1) <= SIZES[size].tolerance else 1


def predicted_bytes(folder: Path) -> int:
    """Return the bytes that `antiphon check-config` predicts for the worker: model, one session, process."""
    torch.set_num_threads(1)
    selection.select("off")
    footprint = table.footprint(folder, CPU, CONTEXT_LIMIT, "bfloat16")
    return footprint.total(1) + (held_bytes(CPU) or 0)


def report(name: str, device: str, answers: list[Answer], peak: Peak, predicted: int | None) -> str:
    """Return the table; `predicted` bytes are known only on the CPU."""
    lines = [f"{name}, bfloat16, on {device}, one thread, kernels off", ""]
    lines += [f"| {'asked for':<22} | seconds | characters | samples |", "|---|---:|---:|---:|"]
    lines += [
        f"| {it.asked:<22} | {it.seconds:7.1f} | {len(it.text):10} | {it.samples:7} |" for it in answers
    ]
    compared = ""
    if predicted is not None:
        compared = f"; predicted: {gib(predicted)} ({peak.resident / predicted - 1:+.1%})"
    lines += ["", f"Peak memory of the host: {gib(peak.resident)}{compared}."]
    lines += [f"At the end: {gib(peak.mapped)} mapped from files, {gib(peak.anonymous)} anonymous."]
    return "\n".join(lines)


def _say(began: float, what: str) -> None:
    print(f"{time.monotonic() - began:.0f} s: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
