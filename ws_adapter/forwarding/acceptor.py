"""The acceptor of connections that other adapters forward to this one."""

import os
import socket
import ssl
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from antiphon_service.listening import bind_all
from ws_adapter.forwarding.introduction import IntroductionReader, Introductions
from ws_adapter.forwarding.tls import PeerTls
from ws_adapter.process.errors import ConfigurationError

_UNIX: Final = "unix:"


class PeerAcceptor:
    """A port or a Unix socket that only other adapters can use."""

    def __init__(
        self, listen: str, advertise: str | None, introductions: Introductions, tls: PeerTls | None
    ) -> None:
        """`listen` is `host:port`, where a port of 0 takes a free one, or `unix:path`; other adapters dial
        `advertise`, None for the same."""
        self.target = ""
        """The address for other adapters, once it is bound."""
        self._sockets: list[socket.socket] = []
        """Sockets that are bound and do not listen yet."""
        self._listen = listen
        self._advertise = advertise
        self._introductions = introductions
        self._tls = tls

    @property
    def context(self) -> ssl.SSLContext | None:
        """TLS for all connections; None over a Unix socket and on loopback without certificates."""
        return self._tls.server if self._tls is not None and not self._listen.startswith(_UNIX) else None

    def introduction(self) -> IntroductionReader:
        """Return a reader of the introduction at the beginning of a connection."""
        return IntroductionReader(self._introductions)

    def bind(self) -> None:
        """Bind the sockets, before the address is published. Raises `ConfigurationError`."""
        try:
            if self._listen.startswith(_UNIX):
                self._sockets, found = [_bind_unix(self._listen.removeprefix(_UNIX))], self._listen
            else:
                host, _, port = self._listen.rpartition(":")
                self._sockets = bind_all(host.strip("[]"), int(port))
                found = f"{host}:{self._sockets[0].getsockname()[1]}"
        except OSError as error:
            raise ConfigurationError(
                f"Cannot listen on {self._listen} for other adapters: {error.strerror}. "
                "Choose another with --peer-listen."
            ) from error
        self.target = self._advertise or found

    def take_sockets(self) -> list[socket.socket]:
        """Return the sockets; from now on the caller closes them."""
        sockets, self._sockets = self._sockets, []
        return sockets

    def close(self) -> None:
        """Close and unlink the sockets. Harmless when repeated."""
        if self.target and self._listen.startswith(_UNIX):
            with suppress(OSError):
                os.unlink(self._listen.removeprefix(_UNIX))
        self.target = ""
        for sock in self.take_sockets():
            sock.close()


def _bind_unix(path: str) -> socket.socket:
    """Bind a Unix socket in place of a stale one; only this user can connect."""
    with suppress(OSError):
        if stat.S_ISSOCK(os.stat(path).st_mode) and not _is_served(path):
            Path(path).unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        os.chmod(path, 0o600)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == 0
