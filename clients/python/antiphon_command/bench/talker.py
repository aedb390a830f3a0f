"""One full-duplex conversation that sends a second of audio every second and measures the answers."""

import asyncio
import base64
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from antiphon.audio.samples import INPUT_RATE_HZ, Samples
from antiphon.connection import refusals
from antiphon.connection.endpoint import REALTIME, endpoint, open_websocket
from antiphon.errors import SessionClosed
from antiphon.protocol.events import ErrorEvent

UNIT_S: Final = 1.0
QUIET_S: Final = 8
"""The seconds of silence between two plays of the recording."""


@dataclass
class Record:
    """The measurements of one conversation; all times in seconds."""

    unit_s: list[float] = field(default_factory=list)
    """The times from each sent second of audio to the first event that answers it."""
    first_audio_s: list[float] = field(default_factory=list)
    """The times to first audio, from the recording's last sent second."""
    unanswered: int = 0
    """The number of seconds of audio without an answer."""
    late: int = 0
    """The number of seconds of audio that the model answered after more than a second."""
    dropped: int = 0
    """The number of seconds of audio that were dropped because they were too old."""
    errors: list[str] = field(default_factory=list)
    """The codes of errors, and the reason of an early end."""

    @property
    def units(self) -> int:
        """The number of seconds of audio that were sent."""
        return len(self.unit_s) + self.unanswered

    @property
    def misses(self) -> int:
        """The number of deadline misses: units answered after more than a second, never, or dropped."""
        return self.late + self.unanswered + self.dropped

    def __iadd__(self, other: "Record") -> "Record":
        self.unit_s += other.unit_s
        self.first_audio_s += other.first_audio_s
        self.unanswered += other.unanswered
        self.late += other.late
        self.dropped += other.dropped
        self.errors += other.errors
        return self


def script(recording: Samples) -> tuple[list[str], int]:
    """Return the audio of a loop, one base64 text per second, and the index of the recording's last second.

    The loop is `recording`, float32 mono at 16 kHz, and `QUIET_S` of silence. The index is -1 for an empty
    recording.
    """
    seconds = -(-len(recording) // INPUT_RATE_HZ)
    padded = np.zeros((seconds + QUIET_S) * INPUT_RATE_HZ, "<f4")
    padded[: len(recording)] = recording
    rows = padded.reshape(-1, INPUT_RATE_HZ)
    return [base64.b64encode(row.tobytes()).decode() for row in rows], seconds - 1


class Talker:
    """One conversation. Call `open`, then `talk`, and `close` in any case."""

    def __init__(self, seconds: Sequence[str], last: int, offset: int) -> None:
        """Create a conversation that begins at `offset` in the script."""
        self.record = Record()
        self.was_queued = False
        self._seconds = seconds
        self._last = last
        self._offset = offset
        self._socket: ClientConnection | None = None
        self._sent: dict[str, float] = {}
        self._asked_at: float | None = None

    async def open(self, url: str, api_key: str | None, mode: str) -> None:
        """Connect and wait for a slot. Raises the errors of the SDK."""
        self._socket = await open_websocket(endpoint(url, REALTIME, mode), api_key)
        try:
            while True:
                event = json.loads(await self._socket.recv())
                match event["type"]:
                    case "session.queued":
                        self.was_queued = True
                        return
                    case "session.queue_done":
                        await self._socket.send('{"type":"session.init","payload":{}}')
                    case "session.created":
                        return
                    case "error":
                        error = event["error"]
                        raise refusals.from_error_event(ErrorEvent(error["code"], error["message"]))
        except ConnectionClosed as closed:
            raise refusals.from_close(closed.rcvd.code if closed.rcvd else None) from None

    async def talk(self, begin: float, units: int) -> None:
        """Send a second every second from the monotonic time `begin` on, and wait for the last answer."""
        assert self._socket is not None
        listening = asyncio.create_task(self._listen(self._socket))
        try:
            for number in range(units):
                await asyncio.sleep(max(0.0, begin + number * UNIT_S - time.monotonic()))
                await self._send(self._socket, number)
            await asyncio.sleep(UNIT_S)
        except ConnectionClosed as closed:
            self.record.errors.append(str(SessionClosed("closed", closed.rcvd.code if closed.rcvd else None)))
            self.record.unanswered += units - len(self.record.unit_s) - len(self._sent)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            self.record.unanswered += len(self._sent)

    async def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            await self._socket.close()

    async def _send(self, socket: ClientConnection, number: int) -> None:
        place = (self._offset + number) % len(self._seconds)
        name = f"bench-{number}"
        self._sent[name] = time.monotonic()
        if place == self._last:
            self._asked_at = self._sent[name]
        await socket.send(
            f'{{"type":"input.append","input":{{"audio":"{self._seconds[place]}","input_id":"{name}"}}}}'
        )

    async def _listen(self, socket: ClientConnection) -> None:
        async for data in socket:
            now = time.monotonic()
            event = json.loads(data)
            if event["type"] == "error":
                self.record.errors.append(event["error"]["code"])
            elif event["type"] == "response.output.delta":
                self._answered(event, now)

    def _answered(self, event: dict[str, object], now: float) -> None:
        sent = self._sent.pop(str(event["input_id"]), None)
        if sent is not None:
            self.record.unit_s.append(now - sent)
        metrics = event["metrics"]
        if isinstance(metrics, dict) and metrics.get("dropped"):
            self.record.dropped += 1
        elif sent is not None and now - sent > UNIT_S:
            self.record.late += 1
        if event["kind"] == "audio" and self._asked_at is not None:
            self.record.first_audio_s.append(now - self._asked_at)
            self._asked_at = None
