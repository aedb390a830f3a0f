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
    """No slot is free yet. Handed to `on_queue`, first at once, then every few seconds."""

    position: int
    """Place in the queue; 1 is next."""
    queue_length: int
    estimated_wait_s: float
    ticket_id: str
    estimate_is_guess: bool = False
    """Whether too few sessions have ended there for more than a guess at the wait."""


@dataclass(frozen=True)
class ResumeOffer:
    """How to go on with a session after its connection is lost."""

    token: str
    window_s: float
    """How long the server waits for the next connection."""


@dataclass(frozen=True)
class Created:
    """The session is ready for audio; the first event of every full-duplex conversation."""

    session_id: str
    mode: str
    prompt_tokens: int | None
    """Tokens of context that the instructions took; None if the server does not say."""
    unsupported_fields: tuple[str, ...]
    """What was asked for and has no effect, by path."""
    resume: ResumeOffer | None = None
    """None if the server ends sessions with their connection."""


@dataclass(frozen=True)
class ConnectionLost:
    """The connection is lost, and another one is being opened; only with `reconnect`."""

    window_s: float
    """How long the server waits."""


@dataclass(frozen=True)
class Resumed:
    """The session goes on over another connection; what was missed follows."""

    attempts: int
    """How many it took to open it."""


@dataclass(frozen=True)
class Moved:
    """The worker of the session was lost or leaves; another one goes on. Nothing is missed or repeated."""

    pause_s: float
    """Seconds in which no unit was answered."""


@dataclass(frozen=True)
class Listening:
    """The model heard one unit of audio and said nothing."""

    unit: int | None
    """Counts the units of the conversation from 0."""
    input_id: str | None
    """The `send_audio` call that completed the unit."""
    dropped: bool = False
    """True: the unit came too late and was never heard."""
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True)
class TextDelta:
    """A piece of what the model says or writes down; append it to the earlier pieces.

    What follows `text` is told by full-duplex conversations alone.
    """

    text: str
    response_id: str | None = None
    unit: int | None = None
    input_id: str | None = None
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AudioDelta:
    """A piece of what the model says, as audio; play it after the earlier pieces.

    What follows `samples` is told by full-duplex conversations alone.
    """

    samples: Samples
    """float32 in [-1, 1], shape `(samples,)`, 24 kHz mono."""
    response_id: str | None = None
    unit: int | None = None
    input_id: str | None = None
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True)
class TurnEnd:
    """The model has said all that it wanted to say in this response; let the audio play out."""

    response_id: str | None
    unit: int | None
    input_id: str | None


@dataclass(frozen=True)
class Interrupted:
    """The model stopped in the middle of a response and listens; drop audio that has not been played."""

    response_id: str | None
    unit: int | None
    input_id: str | None
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True)
class ErrorEvent:
    """Something the server could not do; the conversation goes on unless `Closed` follows.

    What follows `message` is told by full-duplex conversations alone.
    """

    code: str
    message: str
    param: str | None = None
    """Path of the field at fault."""
    input_id: str | None = None
    by_server: bool = False
    """True: a fault of the server's; False: of what was sent."""


@dataclass(frozen=True)
class Closed:
    """The last event: the server ended the conversation, or confirms that it is over."""

    reason: str
    message: str | None
    """What the server adds for people."""
    trace_id: str | None


@dataclass(frozen=True)
class Prefilled:
    """The model has read the whole history; the first event of every chat answer."""

    input_tokens: int
    resume: ResumeOffer | None = None
    """None if the server ends chats with their connection."""


@dataclass(frozen=True)
class ThinkingDelta:
    """A piece of what the model thinks before it answers; no part of the answer."""

    text: str


@dataclass(frozen=True)
class CallDelta:
    """A piece of a call to a tool; append its `arguments` to the earlier ones of the same call."""

    index: int
    """Which call of the answer, from 0."""
    id: str
    name: str
    arguments: str
    complete: bool
    """Whether the arguments are whole. A call that never is must not be carried out."""


@dataclass(frozen=True, eq=False)
class Answer:
    """A chat answer as a whole, whether or not it came in pieces before; its last event."""

    text: str
    samples: Samples
    """float32 in [-1, 1], shape `(samples,)`, 24 kHz mono; empty if the answer is not spoken."""
    input_tokens: int
    generated_tokens: int
    recording_session_id: str | None
    """Names the server's recording of it; None if there is none."""
    unsupported_fields: tuple[str, ...] = ()
    """What was asked for and had no effect, by path."""
    calls: tuple[Call, ...] = ()
    """The calls that are complete, for a message of the assistant in the next history."""
    thinking: str = ""
    """What the model thought before."""


@dataclass(frozen=True)
class Transcript:
    """An utterance as a whole, after its pieces; exactly one for each that did not fail."""

    text: str
    prompt_tokens: int
    """Tokens of the prompt and of the first audio."""
    completion_tokens: int
    """All tokens that the model drew, also those that are no text."""


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
"""What iterating over a full-duplex session yields."""

ChatEvent: TypeAlias = Prefilled | TextDelta | AudioDelta | ThinkingDelta | CallDelta | Answer
"""What iterating over a chat answer yields."""

TranscriptionEvent: TypeAlias = TextDelta | Transcript | ErrorEvent
"""What iterating over a transcription yields."""
