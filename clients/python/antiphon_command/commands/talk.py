"""`antiphon talk`: a conversation by microphone and speakers, or with a recording."""

import argparse
import asyncio
import re
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from antiphon.audio.devices import Device
from antiphon.connection.endpoint import REALTIME
from antiphon_command.arguments.access import KEY_VARIABLE, add_access_options
from antiphon_command.arguments.parser import (
    Subcommands,
    add_command,
    add_help_all,
    examples,
    output_file,
    positive_float,
)
from antiphon_command.conversations.duplex import Answers, converse
from antiphon_command.conversations.spoken import speak
from antiphon_command.output.event_lines import EventLines
from antiphon_command.output.failure import ExitCode, Failure
from antiphon_command.output.terminal import Style
from antiphon_command.output.timeline import Report, Timeline

_MODE: Final = "audio"
_SERVICE: Final = re.compile(r"/(v1|ws)/.+$")
_REMEDY: Final = "Name the root of the server with --url, such as ws://localhost:8006."


def add_to(commands: Subcommands) -> None:
    """Add the subcommand."""
    command = add_command(
        commands,
        "talk",
        "speak with the model, or play it a recording",
        examples(
            "antiphon talk",
            f"{KEY_VARIABLE}=... antiphon talk question.wav --url wss://example.org",
        ),
        run,
        "[FILE]",
    )
    command.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        nargs="?",
        default=None,
        help="a recording (default: the microphone)",
    )
    add_access_options(command)
    command.add_argument(
        "--out", metavar="FILE", type=output_file, default=None, help="write the answer as a 24 kHz WAV file"
    )
    command.add_argument(
        "--session-timeout",
        metavar="SECONDS",
        type=positive_float,
        default=None,
        help="longest conversation (default 60 after FILE)",
    )
    command.add_argument(
        "--json", action="store_true", default=False, help="print each event as a line of JSON"
    )
    add_help_all(command)
    group = command.add_argument_group("devices without FILE, as python -m sounddevice lists them")
    for name in ("microphone", "speaker"):
        group.add_argument(
            f"--{name}",
            metavar="DEVICE",
            type=_device,
            default=None,
            help="number of the device, or part of its name (default: the system's)",
        )


def run(arguments: argparse.Namespace) -> int:
    """Run the conversation; fail if the recording was not fully sent, or if no answer is complete."""
    _check_address(arguments.url)
    if arguments.file is not None and (arguments.microphone, arguments.speaker) != (None, None):
        raise Failure("--microphone and --speaker are for a conversation without FILE.", ExitCode.USAGE)
    report: Report = EventLines() if arguments.json else Timeline(Style())
    heard = Answers()
    access = (arguments.url, arguments.api_key)
    try:
        if arguments.file is None:
            devices = (arguments.microphone, arguments.speaker)
            asyncio.run(speak(*access, *devices, arguments.session_timeout, report, heard))
            return ExitCode.OK
        asyncio.run(converse(*access, arguments.file, arguments.session_timeout, report, heard))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
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
            "No answer was complete before the conversation ended. "
            "Allow more time with --session-timeout, or check that the recording is speech."
        )
    return ExitCode.OK


def _device(text: str) -> Device:
    """Parse the number of a device, or a part of its name."""
    return int(text) if text.isdecimal() else text


def _check_address(url: str) -> None:
    """Raise `Failure` for the address of another service, or of this service in another mode."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return  # connecting reports the invalid address
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
