"""The vocabulary of a full-duplex dialect: decoding of its client events, and creation of its server events.

The state machine in `machine` is the same for all full-duplex dialects except Live; it uses their events by
a `Vocabulary`.
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

# Requests of the client. `name` is the name of the event. `read` raises only `Refusal`. The machine first
# checks whether its state allows the event, and only then calls `read`, which checks the content.


class Begin(Struct, frozen=True):
    """Configure the session; from then on it uses the vocabulary that `choose` returns."""

    name: str
    read: Callable[[Catalogue | None], SessionSetup]
    choose: "Callable[[], Vocabulary]"
    trace_context: Any = None
    """The undecoded `trace_context` of the event."""


class Input(Struct, frozen=True):
    """Take input; `after` is the event that must precede it; `read` gets the session's `max_slice_nums`."""

    name: str
    after: str
    read: Callable[[int | None], Append]
    input_id: str | None = None
    trace_context: Any = None
    """The undecoded `trace_context` of the event."""


class HoldFrame(Struct, frozen=True):
    """Keep a picture for the next unit; `read` returns None if the model has no vision."""

    name: str
    after: str
    read: Callable[[], bytes | None]


class Pause(Struct, frozen=True):
    """Pause for at most `seconds`."""

    name: str
    seconds: float
    told: ServerEvent


class Resume(Struct, frozen=True):
    """End the pause."""

    name: str
    told: ServerEvent


class Interrupt(Struct, frozen=True):
    """Make the next unit listen."""

    name: str
    told: ServerEvent


class Diagnose(Struct, frozen=True):
    """Log that the client sent diagnostics in `frame`, without their content."""

    frame: bytes


class End(Struct, frozen=True):
    """End the session for the client's own `reason`."""

    reason: str


Command: TypeAlias = Begin | Input | HoldFrame | Pause | Resume | Interrupt | Diagnose | End


class Vocabulary(Protocol):
    """The events of one dialect; `opener` is its initialising event."""

    @property
    def opener(self) -> str:
        """Name of the event that configures a session."""

    @property
    def ignores_second_opener(self) -> bool:
        """Whether a second opener is ignored until the session is active."""

    @property
    def saved(self) -> str:
        """The state that `restored` needs beside the URL."""

    def restored(self, saved: str) -> "Vocabulary":
        """Return the vocabulary of a session that began at another adapter."""

    def decode(self, frame: bytes, *, drops_input: bool = False) -> Command:
        """Return the command in a text frame. Raises `Refusal` or `InvalidUtf8`.

        With `drops_input` its input is not decoded, only measured: each unit must still be answered.
        """

    def queued(self, place: Place, *, is_update: bool) -> ServerEvent:
        """Return the event for a place in the queue."""

    def slot_assigned(self, *, has_waited: bool) -> list[ServerEvent]:
        """Return the events for a slot."""

    def created(self, ready: Ready, setup: SessionSetup) -> ServerEvent:
        """Return the event for a session that takes input."""

    def moved(self, pause_s: float) -> list[ServerEvent]:
        """Return the events for a session that another worker continues after a pause."""

    def answer(self, answer: Answer) -> list[ServerEvent]:
        """Return the events for the answer to a unit."""

    def refused(self, refusal: Refusal, input_id: str | None) -> ServerEvent:
        """Return the event for a refused event of the client."""

    def concluded(self, verdict: Verdict, tokens: TokenUsage | None) -> list[ServerEvent]:
        """Return the last events; `tokens` are those of the session, None if it was never created."""
