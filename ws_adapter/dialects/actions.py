"""What a dialect wants done. The session carries actions out in the order in which they were returned."""

from typing import TypeAlias

from msgspec import Struct

from ws_adapter.dialects.answers import Answer
from ws_adapter.dialects.config import SessionSetup
from ws_adapter.dialects.errors import CloseCode
from ws_adapter.dialects.events import ServerEvent


class Send(Struct, frozen=True):
    """Send an event. One that tells of a unit says which `answer` it tells, and whether it is the first to
    do so, which carries its figures; the error before the answer to a failed unit is not.
    """

    event: ServerEvent
    answer: Answer | None = None
    is_first: bool = True


class OpenWorkerSession(Struct, frozen=True):
    """Configure the session at the worker."""

    setup: SessionSetup


class RunUnit(Struct, frozen=True):
    """Give a unit to the worker; `unit` counts from 1.

    `audio` is one second of float32 at 16 kHz; `frames` are encoded pictures, of which the model may make
    `max_slice_nums` slices each.
    """

    unit: int
    audio: bytes
    force_listen: bool
    frames: tuple[bytes, ...] = ()
    max_slice_nums: int | None = None


class CancelUnits(Struct, frozen=True):
    """End every unit at the worker up to and including `unit`."""

    unit: int


class Withdraw(Struct, frozen=True):
    """Take back what was not sent yet of a response, and tell the dialect which units lost what."""

    response_id: str


class Note(Struct, frozen=True):
    """Write what the client has to say about itself into the log."""

    text: str


class CloseSocket(Struct, frozen=True):
    """The conversation is over: release the slot, send what is left, close."""

    code: CloseCode
    reason: str


Action: TypeAlias = Send | OpenWorkerSession | RunUnit | CancelUnits | Withdraw | Note | CloseSocket
