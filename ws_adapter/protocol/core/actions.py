"""Actions that a dialect returns. The session carries them out in the order in which they were returned."""

from http import HTTPStatus
from typing import Final, TypeAlias

from msgspec import Struct

from ws_adapter.protocol.core.answer import Answer, StandaloneText
from ws_adapter.protocol.core.config import WorkerSetup
from ws_adapter.protocol.core.turn import Turn
from ws_adapter.protocol.wire.codec import Samples
from ws_adapter.protocol.wire.errors import CloseCode, Verdict
from ws_adapter.protocol.wire.events import ServerEvent


class Send(Struct, frozen=True):
    """Send an event.

    `answer` is the answer to a unit that the event reports, None for any other event. `is_first` marks the
    first event of an answer, which carries the number and the tokens of the unit; it is False for the error
    event that precedes the answer to a failed unit.
    """

    event: ServerEvent
    answer: Answer | None = None
    is_first: bool = True
    audio_s: float | None = None
    """Seconds of audio in the event; None for float32 at 24 kHz, whose length follows from its bytes."""


class TakeSlot(Struct, frozen=True):
    """Queue for a slot. Invalid while the session has a slot or already queues for one.

    `model` is the model that the session will request from its worker, empty if the client has named none so
    far. Without a model the session queues in any pool. If it then requests a model of another pool, it moves
    to the end of that pool's queue.
    """

    model: str


class LeaveSlot(Struct, frozen=True):
    """Give the slot back, or the place in the queue; running work at the worker is cancelled."""


class OpenWorkerSession(Struct, frozen=True):
    """Configure the session at the worker."""

    setup: WorkerSetup


class RunUnit(Struct, frozen=True):
    """Give a unit to the worker; `unit` counts from 1.

    `audio` is a whole unit of float32 at 16 kHz. `frames` are encoded pictures; the model may cut each into
    at most `max_slice_nums` slices. The model reads `texts` before the sound of the unit.
    """

    unit: int
    audio: bytes
    force_listen: bool
    frames: tuple[bytes, ...] = ()
    max_slice_nums: int | None = None
    accepted_at: float = 0.0
    """The time at which the sound of the unit was complete; 0 means now."""
    texts: tuple[StandaloneText, ...] = ()


class RunTurn(Struct, frozen=True):
    """Give a chat turn to the worker; `unit` counts from 1 in each slot."""

    unit: int
    turn: Turn


class RunSegment(Struct, frozen=True):
    """Give a slice of an utterance to the worker; `unit` counts from 1 in each slot.

    `audio` is float32 at 16 kHz of any length, and may be empty. `begins` resets the model's context, `ends`
    marks the utterance as complete.
    """

    unit: int
    audio: bytes
    begins: bool = False
    ends: bool = False


Run: TypeAlias = RunUnit | RunTurn | RunSegment
"""The input of a unit, one type for each kind of session."""


class LinkTrace(Struct, frozen=True):
    """Link the session to a W3C Trace Context of the client, which may be malformed."""

    traceparent: str | None
    tracestate: str | None


MAX_TRACE_CHARACTERS: Final = 512
"""The most characters of each value; W3C requires receivers to keep this many of a `tracestate`."""


class CancelUnits(Struct, frozen=True):
    """End every unit at the worker up to and including `unit`."""

    unit: int


class Rewind(Struct, frozen=True):
    """Remove unheard output of the model from its context.

    The user has heard `heard_samples` samples of the output audio of `unit`, None for all of them; later
    output is removed. The unit must be finalised. The signal `Rewound` follows, before any signal of a unit
    that is run later.
    """

    unit: int
    heard_samples: int | None = None


class Withdraw(Struct, frozen=True):
    """Drop the unsent events of a response after a barge-in; `Machine.withdrawn` gets them."""

    response_id: str


class Detect(Struct, frozen=True):
    """Detect speech in `samples`, float32 at 16 kHz, on another thread.

    `Machine.detected` gets the scores of whole windows of `speech.WINDOW` samples, in order. The first window
    begins with the first sample of the session; an incomplete window waits for further samples.
    """

    samples: Samples


class CancelTranscription(Struct, frozen=True):
    """Stop the transcription of this item, if it is still running."""

    item_id: str


class HoldInput(Struct, frozen=True):
    """Apply back-pressure: do not read from the client while `is_held`, since no input may be dropped."""

    is_held: bool


class Note(Struct, frozen=True):
    """Log a note about the client. `text` never quotes the client; it has the `outline` of the text."""

    text: str


class Respond(Struct, frozen=True):
    """Begin the answer to an HTTP request; later events are its body.

    With `streams` the body is one server-sent event for each event, without it one JSON object.
    """

    status: HTTPStatus
    streams: bool = False
    retry_s: int | None = None
    """Seconds after which the client may retry."""


class CloseSocket(Struct, frozen=True):
    """End the conversation: release the slot, send the remaining events, close."""

    code: CloseCode
    reason: str


def closing(verdict: Verdict) -> CloseSocket:
    """Return the action that closes the socket with a verdict."""
    close = verdict.close if verdict.close is not None else CloseCode.INTERNAL_ERROR
    return CloseSocket(close, verdict.closed or verdict.code or verdict.message)
