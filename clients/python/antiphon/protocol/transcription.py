"""The transcription dialect of vLLM as pure data: client events to JSON text, JSON text to typed events."""

import json
from dataclasses import dataclass

from antiphon.audio.samples import Samples, to_base64_pcm16
from antiphon.protocol.duplex import resume_offer
from antiphon.protocol.events import ErrorEvent, ResumeOffer, TextDelta, Transcript, TranscriptionEvent
from antiphon.protocol.fields import Fields


@dataclass(frozen=True)
class Opened:
    """The first message of the server: it is ready. Programs do not need it, so it is no public event."""

    session_id: str
    resume: ResumeOffer | None = None


def update(model: str) -> str:
    """Return `session.update`: the model of the next utterance."""
    return json.dumps({"type": "session.update", "model": model})


def append(samples: Samples) -> str:
    """Return `input_audio_buffer.append`."""
    return json.dumps({"type": "input_audio_buffer.append", "audio": to_base64_pcm16(samples)})


def commit(*, final: bool) -> str:
    """Return `input_audio_buffer.commit`: the beginning of an utterance, or its end."""
    return json.dumps({"type": "input_audio_buffer.commit", "final": final})


def decode(frame: str | bytes) -> TranscriptionEvent | Opened | None:
    """Decode one frame of the server; return None if this version does not know its type.

    Raises `ProtocolError` if it breaks the protocol.
    """
    fields = Fields.of(frame)
    match fields.text("type"):
        case "session.created":
            return Opened(fields.text("id") or "", resume_offer(fields.object("resume")))
        case "transcription.delta":
            return TextDelta(fields.text("delta") or "")
        case "transcription.done":
            usage = fields.object("usage")
            return Transcript(
                fields.text("text") or "",
                usage.integer("prompt_tokens") or 0,
                usage.integer("completion_tokens") or 0,
            )
        case "error":
            return ErrorEvent(fields.text("code") or "unknown", fields.text("error") or "")
    return None
