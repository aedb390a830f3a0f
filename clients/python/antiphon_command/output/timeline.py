"""A conversation as lines of text: time, event, details."""

import json
import time
from collections.abc import Callable
from typing import Final, Protocol

from antiphon.audio.samples import OUTPUT_RATE_HZ
from antiphon.protocol.events import (
    AudioDelta,
    Closed,
    ConnectionLost,
    Created,
    ErrorEvent,
    Event,
    Interrupted,
    Listening,
    Moved,
    Queued,
    Resumed,
    TextDelta,
    TurnEnd,
)
from antiphon_command.output.terminal import Style, place_words

_COLOURS: Final = {"says": "green", "speaks": "green", "error": "red", "lost": "red", "listens": "dim"}


class Report(Protocol):
    """A receiver of the events and steps of a conversation."""

    def line(self, what: str, detail: str = "") -> None:
        """Report a step that is no event of the server."""

    def event(self, event: Event | Queued) -> None:
        """Report one event of the conversation."""


class Timeline:
    """A printer of events with the seconds since its creation."""

    def __init__(self, style: Style, now: Callable[[], float] = time.monotonic) -> None:
        self._style = style
        self._now = now
        self._start = now()

    def line(self, what: str, detail: str = "") -> None:
        """Print a step that is no event of the server."""
        text = f"{self._now() - self._start:7.2f} s  {what:<12}{detail}".rstrip()
        colour = _COLOURS.get(what)
        print(self._style(text, colour) if colour else text, flush=True)

    def event(self, event: Event | Queued) -> None:
        """Print one event of the conversation."""
        self.line(*_words(event))


def _words(event: Event | Queued) -> tuple[str, str]:
    match event:
        case Queued():
            return "queued", place_words(event)
        case Created():
            return "connected", f"session {event.session_id}"
        case Listening():
            return "listens", "unit dropped: it came too late" if event.dropped else _unit(event.unit)
        case TextDelta():
            return "says", json.dumps(event.text, ensure_ascii=False)  # control characters stay out
        case AudioDelta():
            return "speaks", f"{len(event.samples) / OUTPUT_RATE_HZ:.2f} s of audio"
        case TurnEnd():
            return "turn ends", ""
        case Interrupted():
            return "interrupted", _unit(event.unit)
        case ErrorEvent():
            return "error", f"{event.code}: {event.message}"
        case ConnectionLost():
            return "lost", f"connection lost; the server waits {event.window_s:.0f} s"
        case Resumed():
            return "resumed", "the conversation goes on"
        case Moved():
            return "moved", f"another worker goes on after {event.pause_s:.1f} s"
        case Closed():
            return "closed", event.reason


def _unit(number: int | None) -> str:
    return "" if number is None else f"unit {number}"
