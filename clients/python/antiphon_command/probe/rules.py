"""The interface of a dialect's rules, and rules that several dialects share."""

import base64
import binascii
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

Event = dict[str, Any]
"""A JSON object with a string `type`."""

LARGEST_FRAME: Final = 16 * 2**20
NORMAL_CLOSURE: Final = 1000


class Rules(ABC):
    """The rules of one exchange in one dialect. `received` yields an event's violations, a sentence each."""

    path: str
    query: str = ""
    takes_audio: bool = True
    """Whether the prober sends a second of audio every second."""

    takes_voice: bool = True
    """Whether the client may send a voice; then the server must have a default voice."""

    client_closes: bool = False
    """Whether the client must close the socket at the end."""

    def __init__(self) -> None:
        self.is_ready = False
        """Whether input may be sent."""
        self.is_over = False
        """Whether the last event has come."""
        self.units = 0
        """The number of appends that were sent; each has a second of audio, except one."""
        self.is_speaking = False
        """Whether an answer has begun and is not over."""
        self.spoken = 0
        """The number of units with speech."""
        self.is_answered = False
        """Whether a whole answer has arrived."""
        self._last_send_ts = 0.0

    # ------------------------------------------------------------------ what to send

    def opening(self) -> list[Event]:
        """Return the messages to send as soon as the socket is open."""
        return []

    def reply(self, event: Event) -> list[Event]:
        """Return the messages to send in answer to an event."""
        return []

    @abstractmethod
    def append(self, pcm: bytes) -> Event:
        """Return the message with the next second or less, float32 mono 16 kHz, and count it."""

    @abstractmethod
    def ending(self) -> list[Event]:
        """Return the messages that end the exchange."""

    # ---------------------------------------------------------------- what must hold

    @abstractmethod
    def received(self, event: Event) -> Iterator[str]:
        """Take an event and yield its violations."""

    @abstractmethod
    def finished(self, code: int | None) -> Iterator[str]:
        """Yield the missing events, once the socket is closed with `code`."""

    def frame(self, data: str | bytes) -> Iterator[str]:
        """Yield the violations of a frame, whatever its content."""
        if isinstance(data, bytes):
            yield "a binary frame came; every event is text"
        elif len(data) > LARGEST_FRAME:
            yield f"a frame has {len(data)} bytes, more than {LARGEST_FRAME}"

    def _stamped(self, event: Event) -> Iterator[str]:
        """Yield the violations of `server_send_ts`, if the event has it."""
        at = event.get("server_send_ts")
        if at is None:
            return
        if not is_number(at):
            yield f"server_send_ts is {at!r}, no number"
        elif at < self._last_send_ts:
            yield "server_send_ts decreases"
        else:
            self._last_send_ts = at


class Queue:
    """The rules of the queue's events; `prefix` is the prefix of their names in the dialect."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._waits = False
        self.is_done = False

    def takes(self, event: Event) -> bool:
        """Return whether an event is one of the queue's."""
        return event["type"] in {f"{self._prefix}{name}" for name in ("queued", "queue_update", "queue_done")}

    def received(self, event: Event) -> Iterator[str]:
        """Yield the violations of an event of the queue."""
        kind = event["type"].removeprefix(self._prefix)
        if self.is_done:
            yield f"{event['type']} after {self._prefix}queue_done"
        match kind:
            case "queue_done":
                self.is_done = True
                return
            case "queued" if self._waits:
                yield "queued came twice"
            case "queue_update" if not self._waits:
                yield "queue_update without queued before it"
        self._waits = True
        position, length = event.get("position"), event.get("queue_length")
        if not isinstance(position, int) or position < 1:
            yield f"position is {position!r}, not a number from 1"
        elif not isinstance(length, int) or length < position:
            yield f"queue_length is {length!r}, less than the position {position}"
        if not is_number(event.get("estimated_wait_s")):
            yield "estimated_wait_s is no number"
        if not isinstance(event.get("estimate_is_guess", False), bool):
            yield "estimate_is_guess is neither true nor false"
        if not isinstance(event.get("ticket_id"), str):
            yield "ticket_id is no text"


def is_number(value: object) -> bool:
    """Return whether a JSON value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """Return whether a JSON value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def fields(event: Event, **kinds: type | tuple[type, ...]) -> Iterator[str]:
    """Yield the fields that are missing or of another type; `float` includes whole numbers."""
    for name, kind in kinds.items():
        if name not in event:
            yield f"{event['type']} has no {name}"
        elif kind is float:
            if not is_number(event[name]):
                yield f"{name} is {event[name]!r}, no number"
        elif not isinstance(event[name], kind) or (kind is int and isinstance(event[name], bool)):
            yield f"{name} is {str(event[name])[:40]!r}, which has the wrong type"


def audio(text: object) -> Iterator[str]:
    """Yield the violations of output audio: base64 of float32 samples between -1 and 1."""
    if not isinstance(text, str):
        yield "audio is no text"
        return
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        yield "audio is not base64"
        return
    if len(data) % 4:
        yield f"audio has {len(data)} bytes, no multiple of 4"
        return
    samples = np.frombuffer(data, "<f4")
    if not bool(np.isfinite(samples).all()):
        yield "audio holds values that are not numbers"
    elif len(samples) and float(np.abs(samples).max()) > 1:
        yield "audio goes beyond -1 to 1"


def sample_count(text: str) -> int:
    """Return the number of samples of output audio."""
    return len(text.rstrip("=")) * 3 // 16


def envelope(event: Event) -> Iterator[str]:
    """Yield the violations of an `error` that holds an object."""
    error = event.get("error")
    if not isinstance(error, dict):
        yield "error is no object"
        return
    for name in ("code", "message", "type"):
        if not isinstance(error.get(name), str):
            yield f"error.{name} is no text"
    if error.get("type") not in ("client_error", "server_error"):
        yield f"error.type is {error.get('type')!r}"
