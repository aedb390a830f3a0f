"""`antiphon talk`: a WAV file in, the answer out."""

import argparse
import asyncio
from pathlib import Path

from antiphon.cli.access import KEY_VARIABLE, add_access_options
from antiphon.cli.arguments import Subcommands, add_command, examples, output_file, positive_float
from antiphon.cli.conversation import converse
from antiphon.cli.failure import ExitCode, Failure
from antiphon.cli.terminal import Style
from antiphon.cli.timeline import Timeline


def add_to(commands: Subcommands) -> None:
    """Adds the subcommand."""
    command = add_command(
        commands,
        "talk",
        "play a WAV file into a full-duplex conversation",
        examples(
            "antiphon talk question.wav --out answer.wav",
            f"{KEY_VARIABLE}=... antiphon talk question.wav --url wss://example.org",
        ),
        run,
        "FILE",
    )
    command.add_argument("file", metavar="FILE", type=Path, help="mono, 16 kHz, PCM16 or float32")
    add_access_options(command)
    command.add_argument(
        "--out", metavar="FILE", type=output_file, default=None, help="write the answer as a 24 kHz WAV file"
    )
    command.add_argument(
        "--session-timeout",
        metavar="SECONDS",
        type=positive_float,
        default=60.0,
        help="end the conversation after this time, answer or not (default 60)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs it; fails if no answer came to its end."""
    timeline = Timeline(Style())
    heard = asyncio.run(
        converse(
            arguments.url,
            arguments.api_key,
            arguments.file,
            arguments.session_timeout,
            timeline,
        )
    )
    if arguments.out:
        heard.write(arguments.out, timeline)
    if not heard.complete:
        raise Failure(
            "No answer came to its end before the conversation did. "
            "Allow more time with --session-timeout, or check that the recording is speech."
        )
    return ExitCode.OK
