"""A conversation with a recording as the input, and the received answers."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from antiphon.audio.files import read_audio
from antiphon.audio.pacing import FileStream
from antiphon.audio.samples import OUTPUT_RATE_HZ, Samples
from antiphon.audio.wav import write_wav
from antiphon.client import connect
from antiphon.protocol.events import AudioDelta, Closed, Event, Interrupted, Listening, TextDelta, TurnEnd
from antiphon.session.duplex import DuplexSession
from antiphon_command.output.timeline import Report

_ANSWER_S: Final = 60.0
"""The seconds that an answer may take after the recording, by default."""

_QUIET_UNITS: Final = 4
"""The units of silence after the recording and an answer that count as the end of the answer."""


@dataclass
class Answers:
    """The model's answers: text and audio."""

    text: str = ""
    pieces: list[Samples] = field(default_factory=list)
    complete: bool = False
    """Whether an answer is complete."""
    played: bool = False
    """Whether the whole recording was sent."""
    ended: str = ""
    """The reason that the server ended the conversation; empty if this side did."""

    def take(self, event: Event) -> None:
        """Store the content of an event."""
        match event:
            case TextDelta():
                self.text += event.text
                self.complete = False
            case AudioDelta():
                self.pieces.append(event.samples)
                self.complete = False
            case TurnEnd():
                self.text += " "
                self.complete = True
            case Interrupted():
                self.text += " "
            case Closed():
                self.ended = event.reason

    @property
    def samples(self) -> Samples:
        """The audio of all answers in order: float32, shape `(samples,)`, 24 kHz."""
        return np.concatenate([np.zeros(0, np.float32), *self.pieces])

    def write(self, path: Path, report: Report) -> None:
        """Save the audio as a WAV file."""
        samples = self.samples
        write_wav(path, samples)
        report.line("saved", f"{path}, {len(samples) / OUTPUT_RATE_HZ:.2f} s of audio")


async def converse(
    url: str, api_key: str | None, path: Path, limit_s: float | None, report: Report, heard: Answers
) -> None:
    """Send the recording in real time, then silence until the answer has ended, for at most `limit_s`.

    Without a limit an answer may take a minute after the recording. `heard` collects the answers, also if
    this function raises. Raises the errors of the SDK.
    """
    samples = read_audio(path)
    async with connect(url, api_key) as client:
        async with client.duplex(on_queue=report.event, reconnect=True) as session:
            stream = FileStream(session.send_audio, samples, then_silence=True)
            report.line("plays", f"{path}, {stream.duration_s:.2f} s")
            time_s = stream.duration_s + _ANSWER_S if limit_s is None else limit_s
            try:
                async with asyncio.timeout(time_s), stream:
                    await _listen(session, stream, heard, report)
            except TimeoutError:
                report.line("time is up", f"after {time_s:.0f} s")
            heard.played = stream.sent
        async for event in session:
            report.event(event)


async def _listen(session: DuplexSession, stream: FileStream, heard: Answers, report: Report) -> None:
    """Receive events until the answer seems complete.

    An answer that ends after the recording is complete. If an answer ended earlier, for example during
    silence at the end of the recording, it counts as complete after `_QUIET_UNITS` units without further
    speech.
    """
    quiet = 0
    played = asyncio.create_task(_announce_end(stream, report))
    try:
        async for event in session:
            report.event(event)
            heard.take(event)
            quiet = quiet + 1 if isinstance(event, Listening) and stream.sent else 0
            if stream.sent and heard.complete and (isinstance(event, TurnEnd) or quiet >= _QUIET_UNITS):
                return
    finally:
        played.cancel()


async def _announce_end(stream: FileStream, report: Report) -> None:
    await stream.wait_sent()
    if stream.sent:
        report.line("played", "from here on silence")
