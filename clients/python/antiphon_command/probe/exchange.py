"""One exchange with a server, event by event."""

import asyncio
import json
from collections.abc import Iterable
from typing import Final, Literal, Protocol

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from antiphon.audio.pacing import Pace
from antiphon.audio.samples import INPUT_RATE_HZ, Samples, pieces
from antiphon.connection import refusals
from antiphon.connection.endpoint import endpoint, open_websocket
from antiphon.errors import ProtocolError
from antiphon.protocol.events import ErrorEvent
from antiphon_command.probe.rules import Event, Rules
from antiphon_command.probe.voice import default_voice

LATE_S: Final = 5.0
"""The seconds within which a server must answer a short append, without the rest of the second."""

SILENT_UNITS: Final = 12
"""The most seconds of silence after the recording, in which an answer should end."""

_SECOND: Final = bytes(4 * INPUT_RATE_HZ)
_SHORT: Final = bytes(4 * INPUT_RATE_HZ * 3 // 10)
"""A short append, as many clients send at the end: the server must not wait for the rest of the second."""

Direction = Literal["sent", "received", "closed"]


class Observer(Protocol):
    """An observer of the events and violations of an exchange."""

    def event(self, direction: Direction, event: Event) -> None:
        """Report an event; for `closed` it is an object with `code` and `reason`."""

    def violation(self, text: str) -> None:
        """Report a violation of a rule."""


async def probe(
    url: str, api_key: str | None, rules: Rules, recording: Samples, limit_s: float, observer: Observer
) -> int:
    """Run the exchange to its end, at most `limit_s`; return the number of violations.

    `recording` is float32 mono at 16 kHz, sent in real time and followed by silence until the answer ends.
    Raises `ConnectError`, `QueueFull` or `AuthError`.
    """
    violations = await default_voice(url, api_key) if rules.takes_voice else []
    socket = await open_websocket(_address(url, rules), api_key)
    exchange = _Exchange(socket, rules, observer)
    exchange.note(violations)
    try:
        async with asyncio.timeout(limit_s):
            await exchange.hold(recording)
    except TimeoutError:
        exchange.note([f"the exchange was not over within {limit_s:g} s"])
    finally:
        await socket.close()
    return exchange.violations


def _address(url: str, rules: Rules) -> str:
    root = endpoint(url, "")
    return root.partition("?")[0].rstrip("/") + rules.path + (f"?{rules.query}" if rules.query else "")


def _raise_if_unavailable(event: Event) -> None:
    """Raise the SDK's error for a server that has no slot or refuses the session; that is no violation."""
    told = event.get("error")
    code, message = (
        (told.get("code"), told.get("message")) if isinstance(told, dict) else (event.get("code"), told)
    )
    error = refusals.from_error_event(ErrorEvent(str(code), str(message)))
    if not isinstance(error, ProtocolError):
        raise error


class _Exchange:
    """One exchange over an open socket."""

    def __init__(self, socket: ClientConnection, rules: Rules, observer: Observer) -> None:
        self._socket = socket
        self._rules = rules
        self._observer = observer
        self._ready = asyncio.Event()
        self._answered = asyncio.Event()
        self._heard = asyncio.Event()
        self.violations = 0

    def note(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.violations += 1
            self._observer.violation(text)

    async def hold(self, recording: Samples) -> None:
        for event in self._rules.opening():
            await self._send(event)
        feeding = asyncio.create_task(self._feed(recording)) if self._rules.takes_audio else None
        try:
            await self._receive()
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        self._observer.event("closed", {"code": self._socket.close_code, "reason": self._socket.close_reason})
        self.note(self._rules.finished(self._socket.close_code))

    async def _receive(self) -> None:
        """Receive until the server closes, or until the exchange is over in a dialect without a close."""
        try:
            while True:
                data = await self._socket.recv()
                await self._take(data)
                if self._rules.is_over and self._rules.client_closes:
                    await self._socket.close()
        except ConnectionClosed:
            return

    async def _take(self, data: str | bytes) -> None:
        self.note(self._rules.frame(data))
        try:
            event = json.loads(data)
        except ValueError:
            self.note(["a frame is not JSON"])
            return
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            self.note(["an event is no object with a type"])
            return
        self._observer.event("received", event)
        if event["type"] == "error" and not self._rules.is_ready:
            _raise_if_unavailable(event)
        self.note(self._rules.received(event))
        self._heard.set()
        for answer in self._rules.reply(event):
            await self._send(answer)
        if self._rules.is_ready:
            self._ready.set()
        if self._rules.is_answered:
            self._answered.set()

    async def _feed(self, recording: Samples) -> None:
        await self._ready.wait()
        pace = Pace()
        for second in pieces(recording, INPUT_RATE_HZ):
            await pace.wait(INPUT_RATE_HZ)
            await self._send(self._rules.append(second.tobytes().ljust(len(_SECOND), b"\0")))
        await self._feed_silence(pace)
        for event in self._rules.ending():
            await self._send(event)

    async def _feed_silence(self, pace: Pace) -> None:
        """Send a second of silence every second until the answer ends; the first one during it is short."""
        spoken = None
        for _ in range(SILENT_UNITS):
            await pace.wait(INPUT_RATE_HZ)
            if self._answered.is_set():
                return
            is_short = self._rules.is_speaking and spoken is None
            if spoken is not None and not await self._goes_on_speaking(spoken):
                self.note(["a short append caused a gap of a second in the answer"])
            if is_short:
                spoken = self._rules.spoken
            await self._send(self._rules.append(_SHORT if is_short else _SECOND))

    async def _goes_on_speaking(self, spoken: int) -> bool:
        """Return whether more than `spoken` units are spoken, or the answer is complete.

        The server has `LATE_S` for that.
        """
        try:
            async with asyncio.timeout(LATE_S):
                while self._rules.is_speaking and self._rules.spoken == spoken:
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            return False
        return True

    async def _send(self, event: Event) -> None:
        self._observer.event("sent", event)
        await self._socket.send(json.dumps(event))
