"""Rate limits over the connections of all adapters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from msgspec import Struct


class AdmissionRequest(NamedTuple):
    """A request to admit a connection, for one of its clients (key or address). Limits of 0 are none."""

    client: str
    """The client, such as `address:203.0.113.5` or `key:` and the hash of a key."""
    most: int
    """The most connections at once."""
    per_min: int
    """The most attempts within a minute."""


class Refused(NamedTuple):
    """The answer for a connection that exceeds a limit."""

    demand: int
    """The index of the admission request whose limit is exceeded, from 0."""
    wait_s: float | None
    """The seconds until a retry; None if too many connections are open."""


class Peer(Struct, frozen=True):
    """The description that an adapter publishes of itself."""

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
        """The id of this adapter; empty without other adapters."""

    def start(self) -> None:
        """Start to send heartbeats for this adapter."""

    async def close(self) -> None:
        """Remove this adapter from the cluster. Harmless when repeated."""

    async def admit(self, demands: Sequence[AdmissionRequest]) -> Admitted | Refused:
        """Count a new connection for all clients of `demands`, or reject it; the attempt counts in any
        case."""

    async def all(self) -> list[Peer]:
        """Return the live adapters, including this one; none without other adapters."""


class NoPeers:
    """The peers of an adapter without a shared Redis: there are none, and its own counts are complete."""

    adapter_id: Final = ""

    def start(self) -> None:
        """Do nothing: there is no other adapter."""

    async def close(self) -> None:
        """Do nothing: there is no other adapter."""

    async def admit(self, demands: Sequence[AdmissionRequest]) -> Admitted | Refused:
        return UNCOUNTED

    async def all(self) -> list[Peer]:
        return []
