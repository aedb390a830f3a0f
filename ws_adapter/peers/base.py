"""Rate limits over all adapters: whether a newcomer is one too many, wherever the others connected."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from msgspec import Struct


class AdmissionRequest(NamedTuple):
    """A newcomer as one sort of client counts it. Limits of 0 are none."""

    client: str
    """Such as `address:203.0.113.5` or `key:` and the hash of a key."""
    most: int
    """At once."""
    per_min: int
    """Within a minute."""


class Refused(NamedTuple):
    """One too many."""

    demand: int
    """Which of the demands cannot be met, from 0."""
    wait_s: float | None
    """When to come back; None where too many are here at once."""


class Peer(Struct, frozen=True):
    """An adapter, as it tells of itself."""

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
    """Where it takes connections that other adapters forward; empty where it takes none."""


@dataclass(frozen=True)
class Admitted:
    """One who came in; `leave` is to be called once when it has gone."""

    leave: Callable[[], None]


UNCOUNTED: Final = Admitted(lambda: None)
"""Of whom nothing is counted."""


class Peers(Protocol):
    """All adapters of a cluster, seen from one of them."""

    @property
    def adapter_id(self) -> str:
        """That of this one; empty where it is alone."""

    def start(self) -> None:
        """Tell them of this one from now on."""

    async def close(self) -> None:
        """Tell them that it goes. Harmless when repeated."""

    async def admit(self, demands: Sequence[AdmissionRequest]) -> Admitted | Refused:
        """Count a newcomer everywhere, by all of the demands or by none; but attempts count in any case."""

    async def all(self) -> list[Peer]:
        """Return the adapters that live, this one among them; empty where it is alone."""


class NoPeers:
    """An adapter that shares nothing: what it counts itself is all there is."""

    adapter_id: Final = ""

    def start(self) -> None:
        """Do nothing: there is no other adapter."""

    async def close(self) -> None:
        """Do nothing: there is no other adapter."""

    async def admit(self, demands: Sequence[AdmissionRequest]) -> Admitted | Refused:
        return UNCOUNTED

    async def all(self) -> list[Peer]:
        return []
