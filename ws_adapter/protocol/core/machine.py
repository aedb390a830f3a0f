"""The interface of every dialect's state machine towards the session that runs it.

Events in, actions out: a machine does no I/O and reads no clock. `now` is in seconds of one monotonic clock,
and every method that returns actions returns them in the order in which they are to be carried out.

A machine has no slot until it asks for one by `TakeSlot`; `queued` follows while none is free, then
`granted`, or `refused` if it gets none. It gives the slot back by `LeaveSlot`, and may ask for another at
once; later signals of the old slot's worker are discarded. `CloseSocket` gives back the slot, or the place in
the queue.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

from msgspec import Struct

from ws_adapter.protocol.core.actions import (
    MAX_TRACE_CHARACTERS,
    CancelTranscription,
    CancelUnits,
    CloseSocket,
    Detect,
    HoldInput,
    LeaveSlot,
    LinkTrace,
    Note,
    OpenWorkerSession,
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


class Offload(Struct, frozen=True):
    """Run `work` in a reader thread: it takes long, and touches no state of the session.

    `work` returns a function, which the event loop then calls with the time, and which returns actions.
    Frames that arrive in the meantime wait. The actions of a frame contain at most one of these.
    """

    work: "Callable[[], Callable[[float], list[Action]]]"


class Transcribe(Struct, frozen=True):
    """Transcribe the user's speech, in a slot that no other session needs.

    `audio` is float32 at 16 kHz; `model` is empty for any model that transcribes. Until the session is over,
    `tell` is called with each result and the time, and the returned actions are carried out.
    """

    item_id: str
    audio: bytes
    model: str
    tell: "Callable[[InputTranscript, float], list[Action]]"


class Become(Struct, frozen=True):
    """Hand the conversation to another machine; this one has no slot."""

    machine: "Machine"


Action: TypeAlias = (
    Send
    | TakeSlot
    | LeaveSlot
    | OpenWorkerSession
    | Run
    | LinkTrace
    | CancelUnits
    | Rewind
    | Withdraw
    | Offload
    | Detect
    | Transcribe
    | CancelTranscription
    | HoldInput
    | Become
    | Note
    | Respond
    | CloseSocket
)


def link_trace(given: Any) -> list[Action]:
    """Return the actions for the `trace_context` of an event; unreadable values are ignored."""
    if given is None:
        return []
    values = given if isinstance(given, dict) else {}
    return [LinkTrace(_text(values.get("traceparent")), _text(values.get("tracestate")))]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and len(value) <= MAX_TRACE_CHARACTERS else None


class Machine(Protocol):
    """One conversation with a client."""

    drops_stale: ClassVar[bool]
    """Whether stale unread input is dropped in favour of newer input."""

    can_be_saved: ClassVar[bool]
    """Whether `save` ever returns a state."""

    @property
    def is_over(self) -> bool:
        """Whether `CloseSocket` was returned, or the client has gone."""

    @property
    def is_waiting(self) -> bool:
        """Whether the client would lose nothing by the end of the session: such sessions are ended first
        under overload and at shutdown."""

    @property
    def held_bytes(self) -> int:
        """The bytes of input that wait, or are unconfirmed at the worker; 0 once the session is over."""

    @property
    def deadline(self) -> float | None:
        """The time at which `tick` is due next; None if no timer runs."""

    def opened(self, now: float) -> list[Action]:
        """Handle the open socket; called once, before anything else."""

    # --------------------------------------------------------------------------------- the state

    def save(self, now: float, blobs: Blobs, *, has_journal: bool) -> bytes | None:
        """Return the state, with which another adapter continues; None if that is impossible now.

        Large data is kept in `blobs`. With `has_journal` another worker can restore the context of the
        present one; without it, running work at the present worker is lost.
        """

    def restore(self, state: bytes, blobs: Saved, now: float) -> list[Action]:
        """Go on from a saved state; called once, and instead of `opened`.

        `Moved` follows if the state was saved with a journal. Raises `ValueError` or `KeyError` for an
        invalid state.
        """

    # ---------------------------------------------------------------------------------- the slot

    def queued(self, place: Place) -> list[Action]:
        """Handle a place in the queue; called again while the session waits, and when it waits for the
        replacement of a lost slot."""

    def granted(self, now: float) -> list[Action]:
        """Handle the attachment to a worker, which waits for `OpenWorkerSession`.

        Called again after `displaced`, with another worker, which has no state of the session.
        """

    def displaced(self) -> None:
        """Handle a worker lost before it was ready; `granted` or `refused` follows."""

    def refused(self, verdict: Verdict) -> list[Action]:
        """Handle that the session gets no slot."""

    def signal(self, signal: Signal, now: float) -> list[Action]:
        """Handle a signal of the worker; none follows `Failed`."""

    # -------------------------------------------------------------------------------- the client

    def text_frame(self, frame: bytes, now: float, *, drops_input: bool = False) -> list[Action]:
        """Handle a text frame of the client. With `drops_input` the adapter has no room for more input."""

    def binary_frame(self, now: float) -> list[Action]:
        """Handle a binary frame of the client."""

    def congested(self, is_congested: bool, now: float) -> list[Action]:
        """Handle the start or end of back-pressure; `is_congested`: too much output waits for the client."""

    def withdrawn(self, sends: list[Send]) -> list[Action]:
        """Handle the result of `Withdraw`: the dropped events, in the order of sending."""

    def slow_consumer(self) -> list[Action]:
        """Handle a slow consumer: a client that does not read its events in time."""

    def disconnected(self) -> None:
        """Handle the lost connection; nothing more can be sent."""

    def detected(self, scores: Sequence[float], now: float) -> list[Action]:
        """Handle the result of `Detect`: the probability of speech in each of the next windows."""

    # ---------------------------------------------------------------------------------- the rest

    def tick(self, now: float, others_wait: bool) -> list[Action]:
        """Handle the due timers; `others_wait`: another session queues for a slot."""

    def ended(self, verdict: Verdict) -> list[Action]:
        """End the session with a verdict, in any state."""

    def shut_down(self) -> list[Action]:
        """Handle the graceful shutdown of the server."""


class WithoutDetection:
    """A base for machines that never ask for `Detect`."""

    def detected(self, scores: Sequence[float], now: float) -> list[Action]:
        return []


class WithoutState:
    """A base for machines whose sessions no other adapter can continue."""

    can_be_saved: ClassVar[bool] = False

    def save(self, now: float, blobs: Blobs, *, has_journal: bool) -> bytes | None:
        return None

    def restore(self, state: bytes, blobs: Saved, now: float) -> list[Action]:
        raise ValueError("another adapter cannot continue a session of this kind")
