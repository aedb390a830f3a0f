"""Listening sockets of a server, on all addresses of its host or on none."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any


class CannotBind(OSError):
    """The error for one address of a host that cannot be bound.

    `where` names the address for a message; it is empty if `host` is the address itself.
    """

    def __init__(self, reason: OSError, host: str, address: str) -> None:
        super().__init__(reason.errno, reason.strerror)
        self.where = "" if address == host else f" on {address}, one of the addresses of {host}"


def failed_address(error: OSError) -> str:
    """Return the address that could not be bound, for an error message; empty if it is the host itself."""
    return error.where if isinstance(error, CannotBind) else ""


def addresses(host: str, port: int) -> Sequence[tuple[int, tuple[Any, ...]]]:
    """Return the family and socket address of each address that `host` resolves to. Raises `OSError`.

    On a machine without IPv6 the IPv6 addresses are left out: `localhost` often resolves to `::1` even there.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    known = dict.fromkeys((family, address) for family, _, _, _, address in found)
    usable = [(family, address) for family, address in known if family != socket.AF_INET6 or _has_ipv6()]
    return usable or [*known]


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def bind_all(host: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Bind one port on every address that `host` resolves to; a port of 0 takes a free one, the same on all.

    A name such as `localhost` may mean several addresses. If one of them were left out, clients would reach
    another server or none, depending on the address that they try first. Raises `OSError` if the name does
    not resolve and `CannotBind` if an address cannot be bound; then nothing is bound.
    """
    sockets: list[socket.socket] = []
    with ExitStack() as bound:
        for family, address in addresses(host, port):
            try:
                sock = bound.enter_context(socket.socket(family, socket.SOCK_STREAM))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if reuse_port:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind((address[0], sockets[0].getsockname()[1] if sockets else port, *address[2:]))
            except OSError as error:
                raise CannotBind(error, host, str(address[0])) from error
            sock.setblocking(False)
            sockets.append(sock)
        bound.pop_all()
    return sockets
