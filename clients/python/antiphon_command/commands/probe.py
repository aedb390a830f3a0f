"""`antiphon probe`: one exchange in a dialect, with the time and the violations of each event."""

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

import numpy as np

from antiphon.audio.files import read_audio
from antiphon.audio.samples import Samples
from antiphon.client import connect
from antiphon_command.arguments.access import add_access_options
from antiphon_command.arguments.parser import (
    Subcommands,
    add_command,
    examples,
    output_file,
    positive_float,
)
from antiphon_command.output.failure import ExitCode
from antiphon_command.output.terminal import Style, printable
from antiphon_command.probe.chat import Chat
from antiphon_command.probe.duplex import Duplex
from antiphon_command.probe.earlier import Earlier
from antiphon_command.probe.exchange import Direction, probe
from antiphon_command.probe.live import Live
from antiphon_command.probe.realtime import Realtime
from antiphon_command.probe.realtime_ga import RealtimeGa
from antiphon_command.probe.rules import Event, Rules
from antiphon_command.probe.transcription import Transcription

_DIALECTS: Final = ("current", "earlier", "duplex", "chat", "transcription", "live", "realtime")
_WITH_MODEL: Final[dict[str, Callable[[str], Rules]]] = {
    "transcription": Transcription,
    "live": Live,
    "realtime": RealtimeGa,
}
"""The dialects in which the client names a model."""

_LONG_TEXT: Final = 60
_ARROWS: Final = {"sent": "->", "received": "<-", "closed": "--"}


def add_to(commands: Subcommands) -> None:
    """Add the subcommand."""
    command = add_command(
        commands,
        "probe",
        "check that a server keeps the rules of its protocol",
        examples("antiphon probe question.wav", "antiphon probe --dialect duplex --record events.jsonl"),
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
        help="recording to send (default: silence)",
    )
    add("--dialect", choices=_DIALECTS, default="current", help="dialect of the exchange (default current)")
    add("--mode", choices=("audio", "video"), default="audio", help="mode in full duplex (default audio)")
    add(
        "--record", metavar="FILE", type=output_file, default=None, help="write every event as a line of JSON"
    )
    add(
        "--session-timeout",
        metavar="SECONDS",
        type=positive_float,
        default=120.0,
        help="longest exchange (default 120)",
    )
    add_access_options(command)


def run(arguments: argparse.Namespace) -> int:
    """Print the exchange; exit code 5 if a rule was broken."""
    recording = read_audio(arguments.file) if arguments.file else np.zeros(0, np.float32)
    if arguments.record is None:
        violations = asyncio.run(_probe(arguments, recording, None))
    else:
        with arguments.record.open("w", encoding="utf-8") as record:
            violations = asyncio.run(_probe(arguments, recording, record))
    style = Style()
    if violations:
        print(style(f"{violations} violations of the protocol", "red"))
        return ExitCode.VIOLATION
    print(style("no violation", "green"))
    return ExitCode.OK


async def _probe(arguments: argparse.Namespace, recording: Samples, record: IO[str] | None) -> int:
    rules = await _rules(arguments)
    printer = _Printer(record)
    return await probe(arguments.url, arguments.api_key, rules, recording, arguments.session_timeout, printer)


async def _rules(arguments: argparse.Namespace) -> Rules:
    match arguments.dialect:
        case "current":
            return Realtime(arguments.mode)
        case "earlier":
            return Earlier(arguments.mode)
        case "duplex":
            return Duplex(arguments.mode)
        case "chat":
            return Chat()
    async with connect(arguments.url, arguments.api_key) as client:
        model = (await client.models())[0]
    return _WITH_MODEL[arguments.dialect](model)


class _Printer:
    """A printer of events, one on a line, which also writes each whole event to `record`."""

    def __init__(self, record: IO[str] | None) -> None:
        self._record = record
        self._style = Style()
        self._start = time.monotonic()

    def event(self, direction: Direction, event: Event) -> None:
        """Print an event; shorten long texts."""
        seconds = time.monotonic() - self._start
        if self._record is not None:
            line = {"t": round(seconds, 4), "direction": direction, "event": event}
            self._record.write(json.dumps(line, ensure_ascii=False) + "\n")
        text = json.dumps(_shortened(event), ensure_ascii=False)
        line_of_text = printable(f"{seconds:8.3f} s {_ARROWS[direction]} {text}")
        print(self._style(line_of_text, "dim") if direction == "sent" else line_of_text, flush=True)

    def violation(self, text: str) -> None:
        """Print a violation below the event that caused it."""
        print(self._style(printable(f"{'':11} !! {text}"), "red"), flush=True)


def _shortened(value: object) -> object:
    match value:
        case str() if len(value) > _LONG_TEXT:
            return f"{value[:12]}... ({len(value)} characters)"
        case dict():
            return {name: _shortened(item) for name, item in value.items()}
        case list():
            return [_shortened(item) for item in value]
    return value
