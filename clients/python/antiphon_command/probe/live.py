"""Rules of `/v1/live/sessions`: continuous audio in both directions, without turns."""

import base64
import binascii
from collections.abc import Iterator
from typing import Any

import numpy as np

from antiphon_command.probe.rules import (
    NORMAL_CLOSURE,
    Event,
    Rules,
    fields,
    is_number,
)

_RATE_HZ = 16_000
_WIDTH = 2


class Live(Rules):
    """Rules of one session, with PCM16 at 16 kHz in both directions."""

    path = "/v1/live/sessions"
    takes_voice = False

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model
        self._ids: set[str] = set()
        self._heard = 0
        """The number of output bytes."""
        self._said_ms = 0
        """The end of the model's last words in milliseconds of the stream."""
        self._transcribed_ms = 0
        """The end of the user's last words in milliseconds of the stream."""
        self._has_words = False
        self._seconds = 0.0

    def opening(self) -> list[Event]:
        format = {"type": "audio/pcm", "rate": _RATE_HZ}
        return [{"type": "session.start", "session": {"model": self._model, "audio": {"format": format}}}]

    def append(self, pcm: bytes) -> Event:
        self.units += 1
        samples = np.clip(np.frombuffer(pcm, "<f4") * 32768, -32768, 32767).astype("<i2")
        return {"type": "session.input_audio.append", "audio": base64.b64encode(samples.tobytes()).decode()}

    def ending(self) -> list[Event]:
        return [{"type": "session.close"}]

    def received(self, event: Event) -> Iterator[str]:
        kind = event["type"]
        if self.is_over:
            yield f"{kind} after session.closed"
        if not self.is_ready and kind not in ("session.started", "info", "error"):
            yield f"{kind} before session.started"
        if kind != "session.output_audio.delta":
            yield from self._identified(event)
        match kind:
            case "session.started":
                if self.is_ready:
                    yield "session.started came twice"
                yield from fields(event, session=dict)
                yield from fields(event.get("session") or {}, id=str, expires_at=int, status=str, model=str)
                self.is_ready = True
            case "session.output_audio.delta":
                yield from self._sound(event)
            case "session.output_transcript.delta":
                yield from self._words(event)
            case "session.input_transcript.delta":
                yield from self._heard_words(event)
            case "session.usage.updated":
                yield from self._usage(event)
            case "session.closed":
                self.is_over = True
                yield from fields(event, session=dict, reason=str)
                yield from self._usage(event)
                if event.get("reason") != "close_requested":
                    yield f"the reason is {event.get('reason')}, but the client closed"
            case "info":
                yield from fields(event, code=str, message=str)
            case "error":
                yield from fields(event, error=dict)
                yield f"an error that the client did not cause: {event.get('error')}"
            case other:
                yield f"unknown event {other}"

    def _identified(self, event: Event) -> Iterator[str]:
        yield from fields(event, event_id=str)
        if event.get("event_id") in self._ids:
            yield f"event_id {event['event_id']} came before"
        self._ids.add(str(event.get("event_id")))

    def _sound(self, event: Event) -> Iterator[str]:
        try:
            data = base64.b64decode(str(event.get("delta", "")), validate=True)
        except binascii.Error:
            yield "delta is no base64"
            return
        if not data or len(data) % _WIDTH:
            yield f"delta has {len(data)} bytes, not whole samples"
        self._heard += len(data)
        if self._has_words and not any(data) and self._heard >= self._said_ms * _RATE_HZ * _WIDTH // 1000:
            self.is_answered = True

    def _words(self, event: Event) -> Iterator[str]:
        yield from fields(event, delta=str, start_ms=int, end_ms=int)
        start_ms, end_ms = event.get("start_ms"), event.get("end_ms")
        if not isinstance(start_ms, int) or not isinstance(end_ms, int):
            return
        if not self._said_ms <= start_ms <= end_ms:
            yield f"words from {start_ms} to {end_ms} ms after some that ended at {self._said_ms}"
        self._said_ms, self._has_words = end_ms, True
        self.spoken += 1

    def _heard_words(self, event: Event) -> Iterator[str]:
        yield from fields(event, delta=str, start_ms=int, end_ms=int)
        start_ms, end_ms = event.get("start_ms"), event.get("end_ms")
        if not isinstance(start_ms, int) or not isinstance(end_ms, int):
            return
        if not self._transcribed_ms <= start_ms <= end_ms:
            before = self._transcribed_ms
            yield f"the user's words from {start_ms} to {end_ms} ms after some that ended at {before}"
        self._transcribed_ms = end_ms

    def _usage(self, event: Event) -> Iterator[str]:
        yield from fields(event, usage=dict)
        seconds: Any = (event.get("usage") or {}).get("seconds")
        if not is_number(seconds):
            yield f"usage.seconds is {seconds!r}, no number"
        elif seconds < self._seconds:
            yield "usage.seconds decreases"
        else:
            self._seconds = seconds
        ratio = (event.get("context_window") or {}).get("usage_ratio", 0)
        if not is_number(ratio) or not 0 <= ratio <= 1:
            yield f"usage_ratio is {ratio!r}, not from 0 to 1"

    def finished(self, code: int | None) -> Iterator[str]:
        if not self.is_over:
            yield f"the socket closed with {code} before session.closed"
        elif code != NORMAL_CLOSURE:
            yield f"the close code is {code}, not {NORMAL_CLOSURE}"
