"""The part of a dialect that differs: how its client events read, and how its server events look.

The state machine in `machine` is the same for all full-duplex dialects; it speaks through a `Vocabulary`.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from ws_adapter.protocol.core.answer import Answer
from ws_adapter.protocol.core.config import Catalogue, SessionSetup
from ws_adapter.protocol.core.machine import Place
from ws_adapter.protocol.core.signals import Ready
from ws_adapter.protocol.duplex.input import Append
from ws_adapter.protocol.wire.errors import Refusal, Verdict
from ws_adapter.protocol.wire.events import ServerEvent, TokenUsage

# What the client wants. `name` is that of the event. Whatever `read` raises is a `Refusal`; it is only called
# in a state in which the event may come: an event is first judged by its time and then by its content.


class Begin(Struct, frozen=True):
    """Configure the session; from then on it speaks the vocabulary that `choose` returns."""

    name: str
    read: Callable[[Catalogue | None], SessionSetup]
    choose: "Callable[[], Vocabulary]"
    related: Any = None
    """Its `trace_context`, as it came."""


class Input(Struct, frozen=True):
    """Take input, which comes `after` the opener; `read` is given the session's `max_slice_nums`."""

    name: str
    after: str
    read: Callable[[int | None], Append]
    input_id: str | None = None
    related: Any = None
    """Its `trace_context`, as it came."""


class HoldFrame(Struct, frozen=True):
    """Keep a picture for the next unit; `read` returns None where the model does not see."""

    name: str
    after: str
    read: Callable[[], bytes | None]


class Pause(Struct, frozen=True):
    """Take a break of at most `seconds`."""

    name: str
    seconds: float
    told: ServerEvent


class Resume(Struct, frozen=True):
    """End the break."""

    name: str
    told: ServerEvent


class Interrupt(Struct, frozen=True):
    """Let the next unit listen."""

    name: str
    told: ServerEvent


class Diagnose(Struct, frozen=True):
    """The client says something of itself in `frame`: the log tells that it did, not what."""

    frame: bytes


class End(Struct, frozen=True):
    """End the session for the client's own `reason`."""

    reason: str


Command: TypeAlias = Begin | Input | HoldFrame | Pause | Resume | Interrupt | Diagnose | End


class Vocabulary(Protocol):
    """One dialect's words; `opener` is its initialising event."""

    @property
    def opener(self) -> str:
        """Name of the event that configures a session."""

    @property
    def ignores_second_opener(self) -> bool:
        """Whether an opener that follows an accepted one is passed over until the session is active."""

    @property
    def saved(self) -> str:
        """State that `restored` needs beside the URL."""

    def restored(self, saved: str) -> "Vocabulary":
        """Return the words of a session that began at another adapter."""

    def decode(self, frame: bytes, *, drops_input: bool = False) -> Command:
        """Return what a text frame asks for. Raises `Refusal` or `InvalidUtf8`.

        With `drops_input` the input in it is not decoded: how long it is matters, so that it is answered.
        """

    def queued(self, place: Place, *, is_update: bool) -> ServerEvent:
        """Return the event for a place in the queue."""

    def slot_assigned(self, *, has_waited: bool) -> list[ServerEvent]:
        """Return the events for a slot."""

    def created(self, ready: Ready, setup: SessionSetup) -> ServerEvent:
        """Return the event for a session that takes input."""

    def moved(self, pause_s: float) -> list[ServerEvent]:
        """Another worker goes on with the session after a pause."""

    def answer(self, answer: Answer) -> list[ServerEvent]:
        """Return what a unit came to."""

    def refused(self, refusal: Refusal, input_id: str | None) -> ServerEvent:
        """Return the event for a refused event of the client."""

    def concluded(self, verdict: Verdict, tokens: TokenUsage | None) -> list[ServerEvent]:
        """Return the last events; `tokens` are those of the session, None if it was never created."""
