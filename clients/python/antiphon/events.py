"""What a full-duplex conversation yields, in the order in which it came."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from antiphon.audio import Samples

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


@dataclass(frozen=True)
class Created:
    """The session is ready for audio; the first event of every conversation."""

    session_id: str
    mode: str
    prompt_tokens: int | None
    """Tokens of context that the instructions took; None if the server does not say."""
    unsupported_fields: tuple[str, ...]
    """What was asked for and has no effect, by path."""


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
    """A piece of what the model says, as text; append it to the earlier pieces of the response."""

    text: str
    response_id: str | None
    unit: int | None
    input_id: str | None
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AudioDelta:
    """A piece of what the model says, as audio; play it after the earlier pieces."""

    samples: Samples
    """float32 in [-1, 1], shape `(samples,)`, 24 kHz mono."""
    response_id: str | None
    unit: int | None
    input_id: str | None
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
    """Something the server could not do; the conversation goes on unless `Closed` follows."""

    code: str
    message: str
    param: str | None
    """Path of the field at fault."""
    input_id: str | None
    by_server: bool
    """True: a fault of the server's; False: of what was sent."""


@dataclass(frozen=True)
class Closed:
    """The last event: the server ended the conversation, or confirms that it is over."""

    reason: str
    message: str | None
    """What the server adds for people."""
    trace_id: str | None


Event: TypeAlias = Created | Listening | TextDelta | AudioDelta | TurnEnd | Interrupted | ErrorEvent | Closed
"""What iterating over a session yields."""
