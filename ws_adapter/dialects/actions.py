"""What a dialect wants done. The session carries actions out in the order in which they were returned."""

from dataclasses import dataclass
from typing import TypeAlias

from ws_adapter.dialects.config import SessionSetup
from ws_adapter.dialects.errors import CloseCode
from ws_adapter.dialects.events import ServerEvent


@dataclass(frozen=True, slots=True)
class Send:
    """Send an event. The output of a unit says which one, counted from 0, and when its input was complete."""

    event: ServerEvent
    unit: int | None = None
    unit_ready_at: float | None = None


@dataclass(frozen=True, slots=True)
class OpenWorkerSession:
    """Configure the session at the worker."""

    setup: SessionSetup


@dataclass(frozen=True, slots=True)
class RunUnit:
    """Give a unit to the worker; `unit` counts from 1, `audio` is one second of float32 at 16 kHz."""

    unit: int
    audio: bytes
    force_listen: bool


@dataclass(frozen=True, slots=True)
class CancelUnits:
    """End every unit at the worker up to and including `unit`."""

    unit: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take back the text and audio of a response that were not sent yet, and tell the dialect which."""

    response_id: str


@dataclass(frozen=True, slots=True)
class CloseSocket:
    """The conversation is over: release the slot, send what is left, close."""

    code: CloseCode
    reason: str


Action: TypeAlias = Send | OpenWorkerSession | RunUnit | CancelUnits | Withdraw | CloseSocket
