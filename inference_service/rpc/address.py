"""The address that a worker's gRPC server listens on."""

import ipaddress
import socket
from dataclasses import dataclass

from antiphon_service.listening import addresses
from inference_service.errors import ConfigurationError


@dataclass(frozen=True)
class Address:
    """A TCP port (0 takes a free one) or a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `host:port`, `[v6]:port` or `unix:path`. Raises `ConfigurationError`."""
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if not path:
                raise ConfigurationError("'unix:' needs the path of a socket, as in unix:/run/antiphon.sock.")
            return cls(path=path)
        host, colon, port = text.rpartition(":")
        is_number = port.isascii() and port.isdigit() and int(port) <= 65535
        if not (host and colon and is_number):
            raise ConfigurationError(f"Cannot listen on {text!r}: give host:port or unix:path.")
        return cls(host=host, port=int(port))

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for all addresses of this machine, so that callers cannot dial it as written."""
        try:
            return not self.path and ipaddress.ip_address(self.host.strip("[]")).is_unspecified
        except ValueError:
            return False

    def resolve(self) -> list[str]:
        """Return the numeric hosts behind a name, IPv6 in brackets. Raises `OSError`."""
        found = addresses(self.host.strip("[]"), self.port)
        return [f"[{address[0]}]" if family == socket.AF_INET6 else address[0] for family, address in found]

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}"
