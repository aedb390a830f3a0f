"""The other end of a call."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

_COMMON_NAME: Final = "x509_common_name"
_ALTERNATIVE_NAME: Final = "x509_subject_alternative_name"


class PeerContext(Protocol):
    """The part of `grpc.aio.ServicerContext` that identifies the caller."""

    def peer(self) -> str:
        """Return gRPC's URI of the other end, such as `ipv4:10.0.0.7:41234`."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return the other end's identity as TLS has proved it; empty without TLS."""


@dataclass(frozen=True)
class Peer:
    """The address of a caller, and the names that its certificate proves."""

    address: str
    """gRPC's URI of the caller, such as `ipv4:10.0.0.7:41234` or `unix:`."""
    identity: str = ""
    """Names of the caller's certificate, separated by commas; empty unless the worker asks for one (mTLS)."""

    @classmethod
    def of(cls, context: PeerContext) -> "Peer":
        """Return the peer of a call's context."""
        proven = context.auth_context()
        names = [*proven.get(_COMMON_NAME, ()), *proven.get(_ALTERNATIVE_NAME, ())]
        unique = dict.fromkeys(name.decode("utf-8", "replace") for name in names)
        return cls(context.peer(), ",".join(unique))

    def fields(self) -> dict[str, str]:
        """Return the peer's fields for a log line."""
        identity = {"peer_identity": self.identity} if self.identity else {}
        return {"peer": self.address, **identity}
