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
    """Send an event. One that tells of a unit says which `answer` it tells, and whether it is the first to
    do so, which carries its number and its tokens; the error before the answer to a failed unit is not.
    """

    event: ServerEvent
    answer: Answer | None = None
    is_first: bool = True
    audio_s: float | None = None
    """Seconds of audio in it, where that is not float32 at 24 kHz."""


class TakeSlot(Struct, frozen=True):
    """Wait for a slot. Not while there is one, or while one is waited for.

    `model` is the one that the session will ask its worker for. It is empty where the client names none, or
    has not yet: then the session waits in any pool, and a model of another pool sends it to the end of that
    pool's queue.
    """

    model: str


class LeaveSlot(Struct, frozen=True):
    """Give the slot back, or the place in the queue; what runs at the worker is cancelled."""


class OpenWorkerSession(Struct, frozen=True):
    """Configure the session at the worker."""

    setup: WorkerSetup


class RunUnit(Struct, frozen=True):
    """Give a unit to the worker; `unit` counts from 1.

    `audio` is a whole unit of float32 at 16 kHz; `frames` are encoded pictures, of which the model may make
    `max_slice_nums` slices each. It reads `texts` before it hears anything of it.
    """

    unit: int
    audio: bytes
    force_listen: bool
    frames: tuple[bytes, ...] = ()
    max_slice_nums: int | None = None
    accepted_at: float = 0.0
    """When its sound was complete; 0 is now."""
    texts: tuple[StandaloneText, ...] = ()


class RunTurn(Struct, frozen=True):
    """Give a chat turn to the worker; `unit` counts from 1 in each slot."""

    unit: int
    turn: Turn


class RunSegment(Struct, frozen=True):
    """Give a slice of an utterance to the worker; `unit` counts from 1 in each slot.

    `audio` is float32 at 16 kHz of any length, also none. `begins` lets the model forget all that came
    before, `ends` says that the utterance is complete.
    """

    unit: int
    audio: bytes
    begins: bool = False
    ends: bool = False


Run: TypeAlias = RunUnit | RunTurn | RunSegment
"""The input of a unit, each kind of session its own."""


class Relate(Struct, frozen=True):
    """The client says what it is doing, in the form of W3C Trace Context, which may be malformed."""

    traceparent: str | None
    tracestate: str | None


LONGEST_RELATION: Final = 512
"""Characters of each value; W3C has receivers keep so many of a `tracestate`."""


class CancelUnits(Struct, frozen=True):
    """End every unit at the worker up to and including `unit`."""

    unit: int


class Rewind(Struct, frozen=True):
    """Take back what the model said after so many samples of a unit's sound, None for all of them.

    The unit is finalised. `Rewound` answers it, before anything that is said of a unit that is run later.
    """

    unit: int
    heard_samples: int | None = None


class Withdraw(Struct, frozen=True):
    """Take back what was not sent yet of a response, and tell the dialect which units lost what."""

    response_id: str


class Detect(Struct, frozen=True):
    """Listen for speech in these `samples`, float32 at 16 kHz, beside the event loop.

    `Machine.detected` tells what was found in each whole window of `speech.WINDOW` samples, in their order;
    windows count from the first sample ever given, and what is left of them waits for more.
    """

    samples: Samples


class CancelTranscription(Struct, frozen=True):
    """Tell no more of this item, if it is still being transcribed."""

    item_id: str


class HoldInput(Struct, frozen=True):
    """Read no more from the client while `is_held`: enough of what it sent waits, and none is dropped."""

    is_held: bool


class Note(Struct, frozen=True):
    """Say something of the client in the log, in words of ours: `outline` stands for what it sent."""

    text: str


class Respond(Struct, frozen=True):
    """Begin the answer to an HTTP request; what is sent from here on is its body.

    `streams`: the body is server-sent events, one for each event, and not one JSON object.
    """

    status: HTTPStatus
    streams: bool = False
    retry_s: int | None = None
    """When the client may come back."""


class CloseSocket(Struct, frozen=True):
    """The conversation is over: release the slot, send what is left, close."""

    code: CloseCode
    reason: str


def closing(verdict: Verdict) -> CloseSocket:
    """Return the close of the socket that goes with a verdict."""
    close = verdict.close if verdict.close is not None else CloseCode.INTERNAL_ERROR
    return CloseSocket(close, verdict.closed or verdict.code or verdict.message)
