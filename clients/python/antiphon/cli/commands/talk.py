"""`antiphon talk`: a WAV file in, the answer out."""

import argparse
import asyncio
import re
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from antiphon.cli.arguments.access import KEY_VARIABLE, add_access_options
from antiphon.cli.arguments.parser import Subcommands, add_command, examples, output_file, positive_float
from antiphon.cli.conversations.duplex import Heard, converse
from antiphon.cli.output.event_lines import EventLines
from antiphon.cli.output.failure import ExitCode, Failure
from antiphon.cli.output.terminal import Style
from antiphon.cli.output.timeline import Report, Timeline
from antiphon.connection.endpoint import REALTIME

_MODE: Final = "audio"
_SERVICE: Final = re.compile(r"/(v1|ws)/.+$")
_REMEDY: Final = "Name the root of the server with --url, such as ws://localhost:8006."


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
        default=None,
        help="end it then, answer or not (default 60 after FILE)",
    )
    command.add_argument(
        "--json", action="store_true", default=False, help="print each event as a line of JSON"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs it; fails if the recording was not heard to its end, or no answer came to its own."""
    _check_address(arguments.url)
    report: Report = EventLines() if arguments.json else Timeline(Style())
    heard = Heard()
    try:
        asyncio.run(
            converse(
                arguments.url, arguments.api_key, arguments.file, arguments.session_timeout, report, heard
            )
        )
    finally:
        if arguments.out and heard.pieces:
            heard.write(arguments.out, report)
    if not heard.played and heard.ended:
        raise Failure(
            f"The server ended the conversation ({heard.ended}) before the recording was played to its end. "
            "Send a shorter one."
        )
    if not heard.played:
        raise Failure("Time was up before the recording was played to its end. Allow more: --session-timeout")
    if not heard.complete:
        raise Failure(
            "No answer came to its end before the conversation did. "
            "Allow more time with --session-timeout, or check that the recording is speech."
        )
    return ExitCode.OK


def _check_address(url: str) -> None:
    """Raises `Failure` for the address of another service, or of this one in another mode."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return  # whoever connects says what is wrong with it
    service = _SERVICE.search(parts.path.rstrip("/"))
    if service and service[0] != REALTIME:
        raise Failure(
            f"antiphon talk converses at {REALTIME}, and {url} is the address of something else. {_REMEDY}",
            ExitCode.USAGE,
        )
    query = parse_qs(parts.query)
    for name in ("mode", "intent"):
        modes = query.get(name)
        if modes and modes[0] != _MODE:
            raise Failure(
                f"antiphon talk converses with mode={_MODE}, and {url} asks for {modes[0]}. {_REMEDY}",
                ExitCode.USAGE,
            )
