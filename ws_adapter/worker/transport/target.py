"""The address of a worker."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """The path of a Unix socket, or a host with its port."""

    host: str = ""
    """A host name or an IP address; IPv6 without brackets."""

    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Read `host:port`, `[v6]:port` or `unix:path`. Raises `ValueError`."""
        if text.startswith("unix:"):
            if text == "unix:":
                raise ValueError("there is no path")
            return cls(path=text.removeprefix("unix:"))
        host, _, port = text.rpartition(":")
        if not host or "/" in host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            raise ValueError("there is no host or no port")
        return cls(host=host.strip("[]"), port=int(port))
