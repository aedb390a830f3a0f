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
    """Send an event. An event of a unit names the `answer` it reports, and whether it is the first to do
    so, which carries its number and its tokens; the error before the answer to a failed unit does not."""

    event: ServerEvent
    answer: Answer | None = None
    is_first: bool = True
    audio_s: float | None = None
    """Seconds of audio in the event, unless it is float32 at 24 kHz."""


class TakeSlot(Struct, frozen=True):
    """Queue for a slot. Not while there is one, or one is queued for.

    `model` is the one that the session will ask its worker for. It is empty if the client names none, or has
    not yet: then the session waits in any pool, and a model of another pool sends it to the end of that
    pool's queue.
    """

    model: str


class LeaveSlot(Struct, frozen=True):
    """Give the slot back, or the place in the queue; running work at the worker is cancelled."""


class OpenWorkerSession(Struct, frozen=True):
    """Configure the session at the worker."""

    setup: WorkerSetup


class RunUnit(Struct, frozen=True):
    """Give a unit to the worker; `unit` counts from 1.

    `audio` is a whole unit of float32 at 16 kHz; `frames` are encoded pictures, of which the model may make
    `max_slice_nums` slices each. It reads `texts` before the sound of the unit.
    """

    unit: int
    audio: bytes
    force_listen: bool
    frames: tuple[bytes, ...] = ()
    max_slice_nums: int | None = None
    accepted_at: float = 0.0
    """The time at which its sound was complete; 0 is now."""
    texts: tuple[StandaloneText, ...] = ()


class RunTurn(Struct, frozen=True):
    """Give a chat turn to the worker; `unit` counts from 1 in each slot."""

    unit: int
    turn: Turn


class RunSegment(Struct, frozen=True):
    """Give a slice of an utterance to the worker; `unit` counts from 1 in each slot.

    `audio` is float32 at 16 kHz of any length, also none. `begins` resets the model's context, `ends` marks
    the utterance as complete.
    """

    unit: int
    audio: bytes
    begins: bool = False
    ends: bool = False


Run: TypeAlias = RunUnit | RunTurn | RunSegment
"""The input of a unit, one type for each kind of session."""


class Relate(Struct, frozen=True):
    """Link the session to a W3C Trace Context of the client, which may be malformed."""

    traceparent: str | None
    tracestate: str | None


LONGEST_RELATION: Final = 512
"""The most characters of each value; W3C makes receivers keep this many of a `tracestate`."""


class CancelUnits(Struct, frozen=True):
    """End every unit at the worker up to and including `unit`."""

    unit: int


class Rewind(Struct, frozen=True):
    """Undo the model's output after so many samples of a unit's sound, None for all of them.

    The unit is finalised. `Rewound` answers it, before any signal of a unit that is run later.
    """

    unit: int
    heard_samples: int | None = None


class Withdraw(Struct, frozen=True):
    """Drop the unsent events of a response, and report the affected units to the dialect."""

    response_id: str


class Detect(Struct, frozen=True):
    """Detect speech in `samples`, float32 at 16 kHz, beside the event loop.

    `Machine.detected` gets the scores of whole windows of `speech.WINDOW` samples, in their order; windows
    count from the first sample ever given, and a remainder waits for more.
    """

    samples: Samples


class CancelTranscription(Struct, frozen=True):
    """Stop the transcription of this item, if it is still running."""

    item_id: str


class HoldInput(Struct, frozen=True):
    """Stop reading from the client while `is_held`: enough of its input waits, and none is dropped."""

    is_held: bool


class Note(Struct, frozen=True):
    """Log a fixed note about the client: `outline` stands for the client's text."""

    text: str


class Respond(Struct, frozen=True):
    """Begin the answer to an HTTP request; later events are its body.

    `streams`: the body is server-sent events, one for each event, and not one JSON object.
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
