"""`antiphon bench`: a load test with the latency of answers, and a search for the most conversations."""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from antiphon.audio.files import read_audio
from antiphon_command.arguments.access import add_access_options
from antiphon_command.arguments.parser import (
    Subcommands,
    add_command,
    examples,
    positive_float,
    positive_int,
)
from antiphon_command.bench.crowd import MOST_MISSES, Figures, measure
from antiphon_command.output.failure import ExitCode, Failure
from antiphon_command.output.terminal import Style

_HEADING = "sessions   units    p50 ms    p90 ms    p99 ms  first audio p50     p95   late  errors"


def add_to(commands: Subcommands) -> None:
    """Add the subcommand."""
    command = add_command(
        commands,
        "bench",
        "hold many conversations at once and measure the answers",
        examples("antiphon bench question.wav --sessions 8", "antiphon bench question.wav --ramp --json"),
        run,
        "[FILE]",
    )
    add = command.add_argument
    add(
        "file",
        metavar="FILE",
        nargs="?",
        type=Path,
        default=None,
        help="recording that is repeated (default: silence)",
    )
    add(
        "--sessions",
        metavar="N",
        type=positive_int,
        default=4,
        help="conversations at once, or first step (default 4)",
    )
    add("--ramp", action="store_true", default=False, help="search for the most with < 1 %% of units late")
    add("--duration", metavar="SECONDS", type=positive_float, default=20.0, help="of each step (default 20)")
    add("--mode", choices=("audio", "video"), default="audio", help="mode of conversations (default audio)")
    add("--json", action="store_true", default=False, help="print each step as a line of JSON")
    add_access_options(command)


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each step."""
    asyncio.run(_bench(arguments))
    return ExitCode.OK


async def _bench(arguments: argparse.Namespace) -> None:
    style = Style()
    if not arguments.json:
        print(style(_HEADING, "bold"), flush=True)
    best = 0
    async for figures in _steps(arguments):
        if arguments.json:
            print(json.dumps(asdict(figures)), flush=True)
        else:
            print(style(_line(figures), "green" if figures.is_good else "red"), flush=True)
        if figures.is_good:
            best = max(best, figures.sessions)
        elif figures.queued and not arguments.ramp:
            raise Failure(
                f"{figures.queued} of {figures.sessions} conversations had to wait for a slot: "
                "ask for fewer with --sessions, or give the worker more with --slots."
            )
    if arguments.ramp and not arguments.json:
        print(f"most conversations with less than {MOST_MISSES:.0%} of units late: {best}")


async def _steps(arguments: argparse.Namespace) -> AsyncIterator[Figures]:
    """Measure one step; with `--ramp` double the sessions until they are too many, then bisect."""
    recording = read_audio(arguments.file) if arguments.file else np.zeros(0, np.float32)

    async def of(sessions: int) -> Figures:
        return await measure(
            arguments.url, arguments.api_key, arguments.mode, recording, sessions, arguments.duration
        )

    figures = await of(arguments.sessions)
    yield figures
    if not arguments.ramp:
        return
    good, bad = 0, arguments.sessions
    while figures.is_good:
        good, bad = figures.sessions, figures.sessions * 2
        figures = await of(bad)
        yield figures
    while bad - good > max(1, good // 16):
        figures = await of((good + bad) // 2)
        yield figures
        good, bad = (figures.sessions, bad) if figures.is_good else (good, figures.sessions)


def _line(figures: Figures) -> str:
    if figures.queued:
        return f"{figures.sessions:8d}   {figures.queued} of them had to wait for a slot"
    times = [figures.p50_ms, figures.p90_ms, figures.p99_ms]
    shown = "  ".join(_number(value, 8) for value in times)
    first = f"{_number(figures.first_audio_p50_ms, 15)}{_number(figures.first_audio_p95_ms, 8)}"
    late = f"{figures.miss_share:7.1%}"
    return f"{figures.sessions:8d}{figures.units:8d}  {shown}  {first}{late}{figures.errors:8d}"


def _number(value: float | None, width: int) -> str:
    return f"{value:{width}.0f}" if value is not None else f"{'-':>{width}}"
