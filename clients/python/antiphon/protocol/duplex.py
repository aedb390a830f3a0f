"""The full-duplex dialect of `/v1/realtime` as pure data.

It converts client events to JSON text, and JSON text to typed events.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

from antiphon.audio.samples import INPUT_RATE_HZ, Samples, from_base64, to_base64
from antiphon.errors import AudioError, ProtocolError
from antiphon.protocol.events import (
    AudioDelta,
    Closed,
    Created,
    ErrorEvent,
    Event,
    Interrupted,
    Listening,
    Moved,
    Queued,
    ResumeOffer,
    TextDelta,
    TurnEnd,
)
from antiphon.protocol.fields import Fields
from antiphon.protocol.messages import Clip

MODES: Final = ("audio", "video")
"""The modes of a full-duplex session, as they stand in the URL."""

_LONGEST_INSTRUCTIONS: Final = 32_768


class DuplexConfig(TypedDict, total=False):
    """The settings of a full-duplex session; a missing key keeps the model's default.

    The server refuses a value out of range, and lists settings that the model does not support in
    `Created.unsupported_fields`.
    """

    generate_audio: bool
    """Whether the model speaks; False gives text only."""
    force_listen_count: int
    """The number of units at the beginning in which the model always listens."""
    max_new_speak_tokens_per_chunk: int
    """The largest number of text tokens spoken in one unit."""
    decode_mode: str
    """The decoding mode, `sampling` or `greedy`."""
    temperature: float
    top_k: int
    top_p: float
    text_repetition_penalty: float
    text_repetition_window_size: int
    length_penalty: float
    """The penalty on the end of the turn: values above 1 make it less likely, so turns get longer."""
    listen_prob_scale: float
    """The factor on the probability of listening."""
    listen_top_k: int | None
    tts_temperature: float


@dataclass(frozen=True)
class Assigned:
    """A slot is assigned: the session may be initialised.

    Programs do not need it, so it is no public event.
    """


@dataclass(frozen=True)
class Continued:
    """The session goes on over this connection.

    Programs get it as `Resumed`, once all messages are sent again.
    """

    offer: ResumeOffer | None
    """The offer for the next resume."""
    received: int
    """The number of messages that the server received."""


def check_mode(mode: object) -> None:
    """Raise `ProtocolError` if `mode` is no mode of a full-duplex session."""
    if mode not in MODES:
        raise _unusable("mode", f'"{MODES[0]}" or "{MODES[1]}"', mode)


def init(
    instructions: str | None,
    settings: Mapping[str, object] | None,
    seed: int | None,
    voice: Clip | str | None = None,
) -> str:
    """Return `session.init`; None leaves the server's default.

    Raises `ProtocolError` for an argument of another type, and `AudioError` for a voice that cannot be sent.
    """
    _check(instructions, settings, seed)
    payload: dict[str, object] = {}
    if instructions is not None:
        payload["system_prompt"] = instructions
    if settings:
        payload["config"] = dict(settings)
    if seed is not None:
        payload["seed"] = seed
    if voice is not None:
        payload["voice"] = _voice(voice)
    try:
        return json.dumps({"type": "session.init", "payload": payload}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _unusable("settings", "JSON values", f"another value ({error})") from None


def _check(instructions: object, settings: object, seed: object) -> None:
    """Raise `ProtocolError` for arguments that no server accepts."""
    if not isinstance(instructions, str | None):
        raise _unusable("instructions", "a string", instructions)
    if instructions is not None and len(instructions) > _LONGEST_INSTRUCTIONS:
        length = f"{len(instructions)} characters"
        raise _unusable("instructions", f"at most {_LONGEST_INSTRUCTIONS} characters", length)
    if not isinstance(settings, Mapping | None) or not all(isinstance(name, str) for name in settings or {}):
        raise _unusable("settings", "a mapping with names of settings", settings)
    if not isinstance(seed, int | None) or isinstance(seed, bool):
        raise _unusable("seed", "an integer", seed)


def _voice(voice: Clip | str) -> Mapping[str, object]:
    """Return the reference audio of the model's voice, or the id of a voice of the server."""
    if isinstance(voice, str) and voice:
        return {"ref_audio_path": voice}
    if not isinstance(voice, Clip):
        raise _unusable("voice", "a Clip or the id of a voice", voice)
    return {"ref_audio_base64": reference_audio(voice)}


def reference_audio(voice: Clip) -> str:
    """Return the base64 of a WAV file, or of samples at 16 kHz. Raises `AudioError` for another rate."""
    if isinstance(voice.audio, bytes):
        return base64.b64encode(voice.audio).decode("ascii")
    if voice.rate_hz != INPUT_RATE_HZ:
        raise AudioError(
            f"The samples of a voice have {INPUT_RATE_HZ} Hz, not {voice.rate_hz}. "
            "Resample them, or pass a WAV file."
        )
    return to_base64(voice.audio)


def _unusable(name: str, expected: str, given: object) -> ProtocolError:
    """Return the error for an invalid argument that is detected before anything is sent."""
    told = given if isinstance(given, str) else f"{type(given).__name__} {given!r}"
    text = f"`{name}` of a conversation: expected {expected}, got {str(told)[:200]}."
    return ProtocolError(text, reason="invalid_argument", param=name)


def append(samples: Samples | None, input_id: str, force_listen: bool, frames: Sequence[str] = ()) -> str:
    """Return `input.append`; `frames` are base64 of the camera's frames in that time.

    Without samples, which needs `force_listen`, the server adds one unit of silence.
    """
    body: dict[str, object] = {"input_id": input_id}
    if samples is not None:
        body["audio"] = to_base64(samples)
    if frames:
        body["video_frames"] = list(frames)
    if force_listen:
        body["force_listen"] = True
    return json.dumps({"type": "input.append", "input": body})


def close(reason: str) -> str:
    """Return `session.close`."""
    return json.dumps({"type": "session.close", "reason": reason})


def queued(fields: Fields) -> Queued:
    """Return a place in the queue; all dialects with a queue encode it alike."""
    return Queued(
        position=fields.integer("position") or 0,
        queue_length=fields.integer("queue_length") or 0,
        estimated_wait_s=fields.number("estimated_wait_s") or 0.0,
        ticket_id=fields.text("ticket_id") or "",
        estimate_is_guess=fields.boolean("estimate_is_guess") or False,
    )


class Decoder:
    """A decoder of one conversation's server frames; its only state is whether a response is open.

    A `listen` that ends an open response means the end of the turn if it says so, and a barge-in otherwise.
    Unknown event types and fields are skipped: a newer server may send them.
    """

    def __init__(self) -> None:
        self._response_open = False

    def decode(self, frame: str | bytes) -> Event | Queued | Assigned | Continued | None:
        """Decode one frame; return None if this version does not know its type.

        Raises `ProtocolError` if the frame breaks the protocol.
        """
        fields = Fields.of(frame)
        match fields.text("type"):
            case "session.queued" | "session.queue_update":
                return queued(fields)
            case "session.queue_done":
                return Assigned()
            case "session.created":
                return _created(fields)
            case "session.resumed":
                return continued(fields)
            case "session.moved":
                return Moved(fields.number("pause_s") or 0.0)
            case "response.output.delta":
                return self._delta(fields)
            case "session.closed":
                diagnostic = fields.object("diagnostic")
                return Closed(
                    reason=fields.text("reason") or "unknown",
                    message=diagnostic.text("message"),
                    trace_id=fields.text("trace_id") or diagnostic.text("trace_id"),
                )
            case "error":
                return _error(fields.object("error"))
        return None

    def _delta(self, fields: Fields) -> Event | None:
        response_id = fields.text("response_id")
        unit = fields.integer("chunk_index")
        input_id = fields.text("input_id")
        metrics = fields.object("metrics").values
        match fields.text("kind"):
            case "text":
                self._response_open = True
                return TextDelta(fields.text("text") or "", response_id, unit, input_id, metrics)
            case "audio":
                self._response_open = True
                samples = from_base64(fields.text("audio") or "")
                return AudioDelta(samples, response_id, unit, input_id, metrics)
            case "listen":
                was_open, self._response_open = self._response_open, False
                if fields.text("reason") == "turn_end":
                    return TurnEnd(response_id, unit, input_id)
                if was_open:
                    return Interrupted(response_id, unit, input_id, metrics)
                return Listening(unit, input_id, metrics.get("dropped") is True, metrics)
        return None


def _created(fields: Fields) -> Created:
    return Created(
        session_id=fields.text("session_id") or "",
        mode=fields.text("mode") or "",
        prompt_tokens=fields.object("metrics").integer("prompt_length"),
        unsupported_fields=fields.texts("unsupported_fields"),
        resume=resume_offer(fields.object("resume")),
    )


def continued(fields: Fields) -> Continued:
    """Decode `session.resumed`."""
    return Continued(resume_offer(fields.object("resume")), fields.integer("received") or 0)


def resume_offer(fields: Fields) -> ResumeOffer | None:
    """Return the server's offer to resume a session; None without one."""
    token, window_s = fields.text("token"), fields.number("window_s")
    return ResumeOffer(token, window_s) if token and window_s else None


def _error(fields: Fields) -> ErrorEvent:
    return ErrorEvent(
        code=fields.text("code") or "unknown",
        message=fields.text("message") or "",
        param=fields.text("param"),
        input_id=fields.text("input_id"),
        by_server=fields.text("type") == "server_error",
    )
