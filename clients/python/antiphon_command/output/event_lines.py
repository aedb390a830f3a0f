"""Events as lines of JSON, for programs."""

import json
import sys
import time
from collections.abc import Callable, Mapping

from antiphon.audio.samples import OUTPUT_RATE_HZ, Samples
from antiphon.protocol.events import (
    Answer,
    AudioDelta,
    Closed,
    ConnectionLost,
    Created,
    ErrorEvent,
    Interrupted,
    Listening,
    Moved,
    Prefilled,
    Queued,
    Resumed,
    TextDelta,
    Transcript,
    TurnEnd,
)


class EventLines:
    """A printer of events as JSON objects: `type`, `time_s` since its creation, and the event's own fields.

    Of audio only the length in seconds is printed.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._start = now()

    def line(self, what: str, detail: str = "") -> None:
        """Print a note that is no event to standard error."""
        print(f"{what} {detail}".rstrip(), file=sys.stderr, flush=True)

    def event(self, event: object) -> None:
        """Print one event of a conversation, of a chat or of a transcription."""
        name, fields = _fields(event)
        line = {"type": name, "time_s": round(self._now() - self._start, 3), **_unit(event), **fields}
        print(json.dumps(line, ensure_ascii=False), flush=True)


def _fields(event: object) -> tuple[str, Mapping[str, object]]:
    match event:
        case Queued():
            return "queued", {
                "position": event.position,
                "estimated_wait_s": event.estimated_wait_s,
                "estimate_is_guess": event.estimate_is_guess,
            }
        case Prefilled():
            return "prefilled", {"input_tokens": event.input_tokens}
        case TextDelta():
            return "text", {"text": event.text}
        case AudioDelta():
            return "audio", {"audio_s": _seconds(event.samples)}
        case Created():
            return "created", {
                "session_id": event.session_id,
                "mode": event.mode,
                "prompt_tokens": event.prompt_tokens,
                "unsupported_fields": event.unsupported_fields,
            }
        case Listening():
            return "listening", {"dropped": event.dropped}
        case TurnEnd():
            return "turn_end", {}
        case Interrupted():
            return "interrupted", {}
        case Closed():
            return "closed", {
                "reason": event.reason,
                "message": event.message,
                "trace_id": event.trace_id,
            }
        case ConnectionLost():
            return "connection_lost", {"window_s": event.window_s}
        case Resumed():
            return "resumed", {"attempts": event.attempts}
        case Moved():
            return "moved", {"pause_s": event.pause_s}
        case Answer():
            return "answer", {
                "text": event.text,
                "audio_s": _seconds(event.samples),
                "input_tokens": event.input_tokens,
                "generated_tokens": event.generated_tokens,
                "unsupported_fields": event.unsupported_fields,
            }
        case Transcript():
            return "transcript", {
                "text": event.text,
                "prompt_tokens": event.prompt_tokens,
                "completion_tokens": event.completion_tokens,
            }
        case ErrorEvent():
            return "error", {"code": event.code, "message": event.message}
    raise TypeError(f"no event that is known here: {event!r}")


def _unit(event: object) -> Mapping[str, object]:
    """Return the field `unit` of an event; empty for events without a unit."""
    unit = getattr(event, "unit", None)
    return {} if unit is None else {"unit": unit}


def _seconds(samples: Samples) -> float:
    return round(len(samples) / OUTPUT_RATE_HZ, 3)
