"""`antiphon check-config`: the memory that a model and its sessions need, before it is loaded."""

import argparse
from pathlib import Path

from antiphon_command.arguments.parser import (
    Subcommands,
    add_command,
    examples,
    positive_float,
    positive_int,
)
from antiphon_command.commands.worker import DTYPES, KERNELS
from antiphon_command.output.failure import ExitCode, Failure, require_extra

_GIB = 2**30
_TITLES = {
    "weights": "weights",
    "session": "a session",
    "shared": "shared",
    "working": "a step",
    "voices": "a step, each",
    "together": "a step, each",
}


def add_to(commands: Subcommands) -> None:
    """Add the subcommand."""
    command = add_command(
        commands,
        "check-config",
        "show the memory that a model and its sessions need",
        examples(
            "antiphon check-config --model MiniCPM-o-4_5 --device cuda --slots 32",
            "antiphon check-config --model MiniCPM-o-4_5 --dtype bfloat16 --memory-gib 80",
        ),
        run,
    )
    add = command.add_argument
    add("--model", required=True, metavar="NAME", help="built-in name or folder")
    add("--device", default="cpu", help="cpu, cuda, cuda:1 ... (default cpu)")
    add(
        "--memory-gib",
        type=positive_float,
        default=None,
        metavar="GIB",
        help="memory of a device that is not here",
    )
    add("--slots", type=positive_int, default=None, metavar="N", help="conversations at once")
    add("--context-limit", type=positive_int, default=None, metavar="TOKENS", help="most tokens per session")
    add("--dtype", choices=DTYPES, default=None, metavar="TYPE", help="as for a worker (default: by device)")
    add(
        "--threads", type=positive_int, default=1, metavar="N", help="CPU threads of the model (default: one)"
    )
    add("--kernels", choices=KERNELS, default="auto", metavar="USE", help="as for a worker (default auto)")
    add("--no-speech", action="store_true", default=False, help="MiniCPM-o without its voice")
    add("--vocoder", type=Path, default=None, metavar="FOLDER", help="its vocoder (default: MODEL/vocoder)")
    add("--vocoder-steps", type=positive_int, default=None, metavar="N", help="steps of its flow (default 5)")
    add("--vocoder-dtype", choices=DTYPES, default=None, metavar="TYPE", help="type of its flow and caches")


def run(arguments: argparse.Namespace) -> int:
    """Print the required memory; fail with `ExitCode.USAGE` if the sessions do not fit."""
    require_extra("check-config", "worker")
    import torch

    from inference_service.checkpoints.location import find
    from inference_service.engine.batch.memory import free_bytes, held_bytes
    from inference_service.errors import ConfigurationError
    from inference_service.families import table
    from inference_service.families.capacity import slots_that_fit
    from inference_service.families.memory.footprint import gib
    from inference_service.kernels.selection import select
    from inference_service.models.errors import CheckpointError
    from inference_service.options import SpeechOptions

    torch.set_num_threads(arguments.threads)  # oneDNN's kernels multiply on more threads than one
    try:
        select(arguments.kernels)
        folder = find(arguments.model)
        device = torch.device(arguments.device)
        speech = SpeechOptions(
            arguments.no_speech, arguments.vocoder, arguments.vocoder_steps, arguments.vocoder_dtype
        )
        footprint = table.footprint(folder, device, arguments.context_limit, arguments.dtype, speech)
    except (CheckpointError, ConfigurationError, RuntimeError) as error:
        raise Failure(str(error), ExitCode.USAGE) from None
    for name, title in _TITLES.items():
        for kind, size in getattr(footprint, name).items():
            _line(title, kind, gib(size))
    # A worker without weights holds about as much memory as this process, since it loads the same libraries.
    # --memory-gib is memory for the model alone.
    counts = device.type == "cpu" and arguments.memory_gib is None
    process = (held_bytes(device) or 0) if counts else 0
    if process:
        _line("process", "with libraries", gib(process))
    if device.type == "cuda":
        # Attention over tokens uses FlexAttention on a GPU, which no test has run there.
        _line("tokens", "not run on CUDA", "flex")
    memory = arguments.memory_gib
    free = round(memory * _GIB) if memory is not None else free_bytes(device)
    left = None if free is None else free - sum(footprint.weights.values()) - process
    slots = arguments.slots or slots_that_fit(footprint, device, left)
    _line(f"{slots} sessions", "with the weights", gib(footprint.total(slots) + process))
    if arguments.slots is None:
        _line("no --slots", "sessions at most", str(slots))
    if free is None or left is None:
        return ExitCode.OK
    fits = footprint.slots_within(left)
    _line("memory", "given" if memory is not None else f"free on {device}", gib(free))
    _line("fits", "sessions", str(fits))
    if fits < slots:
        raise Failure(f"{slots} sessions do not fit: at most {fits} do.", ExitCode.USAGE)
    return ExitCode.OK


def _line(title: str, kind: str, size: str) -> None:
    print(f"{title:<14}{kind:<18}{size:>12}")
