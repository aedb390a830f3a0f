"""Rate limits over all adapters: whether a new connection is one too many, wherever the others are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from msgspec import Struct


class AdmissionRequest(NamedTuple):
    """The request to admit a connection, for one sort of client. Limits of 0 are none."""

    client: str
    """The client, such as `address:203.0.113.5` or `key:` and the hash of a key."""
    most: int
    """The most connections at once."""
    per_min: int
    """The most attempts within a minute."""


class Refused(NamedTuple):
    """A connection was refused by a limit."""

    demand: int
    """The index of the demand that cannot be met, from 0."""
    wait_s: float | None
    """The seconds until a retry; None if too many connections are open."""


class Peer(Struct, frozen=True):
    """An adapter, as described by itself."""

    adapter_id: str
    version: str
    host: str
    pid: int
    since: float
    """Unix seconds."""
    sessions: int = 0
    cpu_cores: float = 0.0
    is_ready: bool = False
    is_draining: bool = False
    forward: str = ""
    """The address for connections that other adapters forward; empty if it takes none."""


@dataclass(frozen=True)
class Admitted:
    """An admitted connection; call `leave` once when it has ended."""

    leave: Callable[[], None]


UNCOUNTED: Final = Admitted(lambda: None)
"""An admission that is not counted."""


class Peers(Protocol):
    """All adapters of a cluster, seen from one of them."""

    @property
    def adapter_id(self) -> str:
        """The id of this adapter; empty if it is alone."""

    def start(self) -> None:
        """Announce this adapter from now on."""

    async def close(self) -> None:
        """Announce that this adapter leaves. Harmless when repeated."""

    async def admit(self, demands: Sequence[AdmissionRequest]) -> Admitted | Refused:
        """Count a new connection in all adapters, by all demands or by none; attempts count in any case."""

    async def all(self) -> list[Peer]:
        """Return the live adapters, this one among them; empty if it is alone."""


class NoPeers:
    """An adapter that shares nothing: its own counts are complete."""

    adapter_id: Final = ""

    def start(self) -> None:
        """Do nothing: there is no other adapter."""

    async def close(self) -> None:
        """Do nothing: there is no other adapter."""

    async def admit(self, demands: Sequence[AdmissionRequest]) -> Admitted | Refused:
        return UNCOUNTED

    async def all(self) -> list[Peer]:
        return []
