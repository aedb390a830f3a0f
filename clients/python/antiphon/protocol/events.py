"""Events that conversations yield, in the order of their arrival."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from antiphon.audio.samples import Samples
from antiphon.protocol.messages import Call

Metrics: TypeAlias = Mapping[str, object]
"""The server's measurements of a unit, such as `prefill_ms` or `kv_cache_length`; keys vary with the server.
"""


@dataclass(frozen=True)
class Queued:
    """No slot is free yet. `on_queue` gets it at once, then every few seconds."""

    position: int
    """The place in the queue; 1 is next."""
    queue_length: int
    estimated_wait_s: float
    ticket_id: str
    estimate_is_guess: bool = False
    """Whether too few sessions have ended on the server for a reliable estimate of the wait."""


@dataclass(frozen=True)
class ResumeOffer:
    """The server's offer to resume a session after its connection is lost."""

    token: str
    window_s: float
    """The time in seconds that the server waits for the next connection."""


@dataclass(frozen=True)
class Created:
    """The session is ready for audio; the first event of every full-duplex conversation."""

    session_id: str
    mode: str
    prompt_tokens: int | None
    """The number of context tokens that the instructions took; None if the server does not say."""
    unsupported_fields: tuple[str, ...]
    """The paths of requested settings that have no effect."""
    resume: ResumeOffer | None = None
    """The resume offer; None if the server ends sessions with their connection."""


@dataclass(frozen=True)
class ConnectionLost:
    """The connection is lost and another one is being opened; only with `reconnect`."""

    window_s: float
    """The time in seconds that the server waits."""


@dataclass(frozen=True)
class Resumed:
    """The session goes on over another connection; the missed events follow."""

    attempts: int
    """The number of attempts until the connection was open."""


@dataclass(frozen=True)
class Moved:
    """The session has moved to another worker, because its own was lost or drains.

    No output is missed or repeated.
    """

    pause_s: float
    """The seconds in which no unit was answered."""


@dataclass(frozen=True)
class Listening:
    """The model processed one unit of audio and stayed silent."""

    unit: int | None
    """The number of the unit in the conversation, from 0."""
    input_id: str | None
    """The `send_audio` call that completed the unit."""
    dropped: bool = False
    """Whether the unit was dropped, because it came too late."""
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True)
class TextDelta:
    """A piece of the model's text or of a transcript; append it to the earlier pieces.

    Only full-duplex conversations set the fields after `text`.
    """

    text: str
    response_id: str | None = None
    unit: int | None = None
    input_id: str | None = None
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AudioDelta:
    """A piece of the model's speech; play it after the earlier pieces.

    Only full-duplex conversations set the fields after `samples`.
    """

    samples: Samples
    """float32 in [-1, 1], shape `(samples,)`, 24 kHz mono."""
    response_id: str | None = None
    unit: int | None = None
    input_id: str | None = None
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True)
class TurnEnd:
    """The model has finished its response; let the audio play out."""

    response_id: str | None
    unit: int | None
    input_id: str | None


@dataclass(frozen=True)
class Interrupted:
    """The model stopped in the middle of a response (barge-in) and listens.

    Drop the audio that has not been played.
    """

    response_id: str | None
    unit: int | None
    input_id: str | None
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True)
class ErrorEvent:
    """An error of the server or of a sent message; the conversation goes on unless `Closed` follows.

    Only full-duplex conversations set the fields after `message`.
    """

    code: str
    message: str
    param: str | None = None
    """The path of the field at fault."""
    input_id: str | None = None
    by_server: bool = False
    """Whether the server is at fault; False if the sent message is."""


@dataclass(frozen=True)
class Closed:
    """The last event: the server ended the conversation, or confirms its end."""

    reason: str
    message: str | None
    """The server's explanation for people."""
    trace_id: str | None


@dataclass(frozen=True)
class Prefilled:
    """The model has read the whole history; the first event of every chat answer."""

    input_tokens: int
    resume: ResumeOffer | None = None
    """The resume offer; None if the server ends chats with their connection."""


@dataclass(frozen=True)
class ThinkingDelta:
    """A piece of the model's reasoning before it answers; no part of the answer."""

    text: str


@dataclass(frozen=True)
class CallDelta:
    """A piece of a call to a tool; append its `arguments` to the earlier ones of the same call."""

    index: int
    """The index of the call in the answer, from 0."""
    id: str
    name: str
    arguments: str
    complete: bool
    """Whether the arguments are whole. An incomplete call must not be carried out."""


@dataclass(frozen=True, eq=False)
class Answer:
    """The whole chat answer, sent after its pieces; always the last event."""

    text: str
    samples: Samples
    """float32 in [-1, 1], shape `(samples,)`, 24 kHz mono; empty if the answer is not spoken."""
    input_tokens: int
    generated_tokens: int
    recording_session_id: str | None
    """The id of the server's recording of the answer; None without one."""
    unsupported_fields: tuple[str, ...] = ()
    """The paths of requested settings that had no effect."""
    calls: tuple[Call, ...] = ()
    """The complete calls, for a message of the assistant in the next history."""
    thinking: str = ""
    """The model's reasoning before the answer."""


@dataclass(frozen=True)
class Transcript:
    """The whole text of an utterance, after its pieces; each utterance that did not fail has one."""

    text: str
    prompt_tokens: int
    """The number of tokens of the prompt and of the first audio."""
    completion_tokens: int
    """The number of tokens that the model drew, including those that are no text."""


Event: TypeAlias = (
    Created
    | Listening
    | TextDelta
    | AudioDelta
    | TurnEnd
    | Interrupted
    | ErrorEvent
    | ConnectionLost
    | Resumed
    | Moved
    | Closed
)
"""The events that iterating over a full-duplex session yields."""

ChatEvent: TypeAlias = Prefilled | TextDelta | AudioDelta | ThinkingDelta | CallDelta | Answer
"""The events that iterating over a chat answer yields."""

TranscriptionEvent: TypeAlias = TextDelta | Transcript | ErrorEvent
"""The events that iterating over a transcription yields."""
