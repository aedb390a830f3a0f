"""The interface of every dialect's state machine towards the session that runs it.

Events in, actions out: a machine does no I/O and reads no clock. `now` is in seconds of one monotonic clock,
and every method that returns actions returns them in the order in which they are to be carried out.

A machine has no slot until it asks for one by `TakeSlot`; `queued` follows while none is free, then
`granted`, or `refused` if it gets none. It gives the slot back by `LeaveSlot`, and may ask for another at
once: what the worker still had to say about the old one is not told any more. `CloseSocket` gives back
whatever it holds.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

from msgspec import Struct

from ws_adapter.protocol.core.actions import (
    LONGEST_RELATION,
    CancelTranscription,
    CancelUnits,
    CloseSocket,
    Detect,
    HoldInput,
    LeaveSlot,
    Note,
    OpenWorkerSession,
    Relate,
    Respond,
    Rewind,
    Run,
    Send,
    TakeSlot,
    Withdraw,
)
from ws_adapter.protocol.core.blobs import Blobs, Saved
from ws_adapter.protocol.core.signals import Signal
from ws_adapter.protocol.core.transcription import InputTranscript
from ws_adapter.protocol.wire.errors import Verdict


class Place(Struct, frozen=True):
    """A place in the queue: `position` counts from 1, the wait is in seconds."""

    position: int
    estimated_wait_s: float
    ticket_id: str
    queue_length: int
    estimate_is_guess: bool


class Apart(Struct, frozen=True):
    """Let `work` run beside the event loop, since it takes long and depends on nothing else.

    It returns what is to be called next, on the event loop, with the time; and that returns actions. Frames
    that come meanwhile wait. There is at most one at a time among the actions that a frame leads to.
    """

    work: "Callable[[], Callable[[float], list[Action]]]"


class Transcribe(Struct, frozen=True):
    """Write down what the user said, in a slot of its own that nobody else wants at the moment.

    `audio` is float32 at 16 kHz; `model` is empty for any that transcribes. `tell` is called with all that
    comes of it and the time, while the session is not over; what it returns is carried out.
    """

    item_id: str
    audio: bytes
    model: str
    tell: "Callable[[InputTranscript, float], list[Action]]"


class Become(Struct, frozen=True):
    """Another machine has the conversation from here on; this one has no slot."""

    machine: "Machine"


Action: TypeAlias = (
    Send
    | TakeSlot
    | LeaveSlot
    | OpenWorkerSession
    | Run
    | Relate
    | CancelUnits
    | Rewind
    | Withdraw
    | Apart
    | Detect
    | Transcribe
    | CancelTranscription
    | HoldInput
    | Become
    | Note
    | Respond
    | CloseSocket
)


def related(given: Any) -> list[Action]:
    """Return what is to be done about a `trace_context`; one that cannot be read costs nothing."""
    if given is None:
        return []
    values = given if isinstance(given, dict) else {}
    return [Relate(_text(values.get("traceparent")), _text(values.get("tracestate")))]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and len(value) <= LONGEST_RELATION else None


class Machine(Protocol):
    """One conversation with a client."""

    drops_stale: ClassVar[bool]
    """Whether input that has become old before it was read is better dropped for newer one."""

    lasts: ClassVar[bool]
    """Whether `save` ever returns a state."""

    @property
    def is_over(self) -> bool:
        """Whether `CloseSocket` was returned, or the client has gone."""

    @property
    def is_waiting(self) -> bool:
        """Whether the client has got nothing yet that it would lose: it is turned away first when there is
        too much to do, or when the server ends."""

    @property
    def held_bytes(self) -> int:
        """Input that waits or is at the worker and not confirmed by it yet; none once it is over."""

    @property
    def deadline(self) -> float | None:
        """When `tick` is due next; None while nothing waits for time."""

    def opened(self, now: float) -> list[Action]:
        """Handle the open socket; called once, before anything else."""

    # --------------------------------------------------------------------------------- the state

    def save(self, now: float, blobs: Blobs, *, has_journal: bool) -> bytes | None:
        """Return the state, with which another adapter goes on; None if none can now.

        Large data stands in `blobs`. With `has_journal` another worker will know what the present one knows;
        without, a worker that the state speaks of is lost.
        """

    def restore(self, state: bytes, blobs: Saved, now: float) -> list[Action]:
        """Go on from a saved state; called once, and instead of `opened`.

        `Moved` follows if the state was saved with a journal. Raises `ValueError` or `KeyError` for a state
        that is none.
        """

    # ---------------------------------------------------------------------------------- the slot

    def queued(self, place: Place) -> list[Action]:
        """Handle a place in the queue; called again while the session waits, also when a lost slot is
        replaced."""

    def granted(self, now: float) -> list[Action]:
        """Handle the attachment to a worker, which waits for `OpenWorkerSession`.

        Called again after `displaced`: then it is another worker, which knows nothing yet.
        """

    def displaced(self) -> None:
        """Handle a worker lost before it was ready; `granted` or `refused` follows."""

    def refused(self, verdict: Verdict) -> list[Action]:
        """Handle that the session gets no slot."""

    def signal(self, signal: Signal, now: float) -> list[Action]:
        """Handle a signal of the worker; none follows `Failed`."""

    # -------------------------------------------------------------------------------- the client

    def text_frame(self, frame: bytes, now: float, *, drops_input: bool = False) -> list[Action]:
        """Handle a text frame of the client. With `drops_input` there is no room for the input in it."""

    def binary_frame(self, now: float) -> list[Action]:
        """Handle a binary frame of the client."""

    def congested(self, is_congested: bool, now: float) -> list[Action]:
        """Return whether more output waits for the client than should."""

    def withdrawn(self, sends: list[Send]) -> list[Action]:
        """Return the reply to `Withdraw`: what was taken back, in the order of sending."""

    def slow_consumer(self) -> list[Action]:
        """Handle a slow consumer."""

    def disconnected(self) -> None:
        """Handle the lost connection; nothing more can be sent."""

    def detected(self, scores: Sequence[float], now: float) -> list[Action]:
        """Return the reply to `Detect`: the probability of speech in each of the windows that come next."""

    # ---------------------------------------------------------------------------------- the rest

    def tick(self, now: float, others_wait: bool) -> list[Action]:
        """Do what is due; `others_wait`: somebody queues for a slot."""

    def ended(self, verdict: Verdict) -> list[Action]:
        """End the session with a verdict, whatever it does."""

    def shut_down(self) -> list[Action]:
        """Handle the graceful shutdown of the server."""


class WithoutDetection:
    """A base for machines that never ask for `Detect`."""

    def detected(self, scores: Sequence[float], now: float) -> list[Action]:
        return []


class WithoutState:
    """A base for machines with whose sessions no other adapter can go on."""

    lasts: ClassVar[bool] = False

    def save(self, now: float, blobs: Blobs, *, has_journal: bool) -> bytes | None:
        return None

    def restore(self, state: bytes, blobs: Saved, now: float) -> list[Action]:
        raise ValueError("no other adapter goes on with such a session")
