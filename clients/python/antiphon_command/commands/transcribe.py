"""`antiphon transcribe`: transcription of a recording or a pipe, printed while the audio is sent."""

import argparse
import asyncio
import signal
from pathlib import Path
from typing import Final

from antiphon.audio.pacing import Pace
from antiphon.client import connect
from antiphon.protocol.events import ErrorEvent, TextDelta, Transcript, TranscriptionEvent
from antiphon.session.transcription import LEAD_S, TranscriptionSession
from antiphon_command.arguments.access import add_access_options
from antiphon_command.arguments.parser import Subcommands, add_command, examples
from antiphon_command.conversations.recording import FileRecording, PipedRecording, Recording
from antiphon_command.output.event_lines import EventLines
from antiphon_command.output.failure import ExitCode, Failure
from antiphon_command.output.terminal import printable

_STANDARD_INPUT: Final = "-"


def add_to(commands: Subcommands) -> None:
    """Add the subcommand."""
    command = add_command(
        commands,
        "transcribe",
        "transcribe a recording while it is sent",
        examples(
            "antiphon transcribe question.wav > question.txt",
            "arecord -q -t raw -f S16_LE -r 16000 | antiphon transcribe -",
        ),
        run,
        "FILE",
    )
    add = command.add_argument
    add("file", metavar="FILE", help="WAV, mono, 16 kHz; others with the extra audio; - reads a pipe")
    add("--realtime", action="store_true", default=False, help="send it in real time")
    add("--json", action="store_true", default=False, help="print each event as a line of JSON")
    add("--model", metavar="NAME", default=None, help="the model (default: the first served one)")
    add_access_options(command)


def run(arguments: argparse.Namespace) -> int:
    """Print the text to standard output, and everything else to standard error."""
    try:
        asyncio.run(_transcribe(arguments))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    return ExitCode.OK


async def _transcribe(arguments: argparse.Namespace) -> None:
    recording: Recording
    if arguments.file == _STANDARD_INPUT:
        recording = piped = PipedRecording()
        _end_with_ctrl_c(piped)
    else:
        recording = FileRecording(Path(arguments.file))
    pace = Pace(0.0 if arguments.realtime else LEAD_S)
    printer = _Printer(EventLines() if arguments.json else None)
    try:
        async with connect(arguments.url, arguments.api_key) as client:
            async with (
                client.transcribe(arguments.model, reconnect=True) as session,
                asyncio.TaskGroup() as tasks,
            ):
                fed = asyncio.Event()
                tasks.create_task(_feed(session, recording, pace, fed))
                await _print_events(session, fed, printer)
            async for event in session:  # events after the last transcript
                printer.event(event)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        printer.end()


async def _feed(session: TranscriptionSession, recording: Recording, pace: Pace, fed: asyncio.Event) -> None:
    async for chunk in recording.chunks():
        await pace.wait(len(chunk))
        await session.send_audio(chunk)
    fed.set()
    await session.end_utterance()


async def _print_events(session: TranscriptionSession, fed: asyncio.Event, printer: "_Printer") -> None:
    """Print the transcript until it is complete, or until the server ends the session early."""
    async for event in session:
        printer.event(event)
        if isinstance(event, Transcript) and fed.is_set():
            return


def _end_with_ctrl_c(recording: PipedRecording) -> None:
    """Make Ctrl-C end the standard input; a second Ctrl-C cancels this task."""
    task = asyncio.current_task()
    assert task is not None

    def on_signal() -> None:
        if recording.is_stopped:
            task.cancel()
        recording.stop()

    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, on_signal)


class _Printer:
    """A printer of the transcript."""

    def __init__(self, lines: EventLines | None) -> None:
        self._lines = lines
        self._written = ""

    def event(self, event: TranscriptionEvent) -> None:
        """Print the new text. Raises `Failure` for an error of the server."""
        if self._lines is not None:
            self._lines.event(event)
        elif isinstance(event, TextDelta):
            self._write(event.text if self._written else event.text.lstrip())
        if isinstance(event, ErrorEvent):
            raise Failure(f"The transcription failed: {event.message.rstrip('.')} ({event.code}).")

    def end(self) -> None:
        """End the last line."""
        if self._written:
            print(flush=True)

    def _write(self, text: str) -> None:
        self._written += text
        print(printable(text), end="", flush=True)
