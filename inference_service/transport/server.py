"""The worker's gRPC server: where it listens, with which options, and its health."""

import asyncio
import ipaddress
import os
import socket
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

import grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse

from inference_service.errors import ConfigurationError
from inference_service.transport.call import Call
from inference_service.transport.door import Door
from inference_service.transport.health import CHECK, WATCH, Health
from inference_service.transport.tls import Certificate

Answer: TypeAlias = Callable[[Call], None]
"""Answers calls of one path."""

SERVICES = ("", "antiphon.v1.InferenceService")
"""What the health service knows: the server as a whole, and its one service."""

_PROBE_S: Final = 1.0


@dataclass(frozen=True)
class Address:
    """Where a server listens: a TCP port (0 takes a free one) or a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Reads `host:port`, `[v6]:port` or `unix:path`. Raises `ConfigurationError`."""
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
        """Nobody outside this machine can reach it."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for all addresses of this machine, so that nobody can dial it."""
        try:
            return not self.path and ipaddress.ip_address(self.host.strip("[]")).is_unspecified
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}"


def _check_exposed(
    address: Address, is_keyed: bool, insecure_grpc: bool, certificate: Certificate | None
) -> None:
    if not is_keyed and (certificate is None or not certificate.asks):
        raise ConfigurationError(
            f"Refusing to listen on {address} without a worker key: everybody who reaches it could take its "
            "slots. Name a key with --worker-key-file or ANTIPHON_WORKER_KEY, or with TLS an authority of "
            "callers with --tls-client-ca, or listen on loopback or a Unix socket."
        )
    if certificate is None and not insecure_grpc:
        raise ConfigurationError(
            f"Refusing to listen on {address}: gRPC is plain text there, so whoever sees the traffic hears "
            "the sessions and can use their leases. Pass --tls-cert and --tls-key, listen on loopback or a "
            "Unix socket, or pass --insecure-grpc if the network is trusted."
        )


def _is_served(path: str) -> bool:
    """Whether somebody listens on the socket `path`; gRPC would silently take it away from them."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except (BlockingIOError, TimeoutError):
            return True  # whoever it is has no time
        except (OSError, ValueError):
            return False
    return True


def most_calls(slots: int) -> int:
    """How many a connection may have open: three of each session, and health checks."""
    return 4 * slots + 16


class WorkerServer:
    """A gRPC server with a health service that says NOT_SERVING until told otherwise.

    Raises `ConfigurationError` if `listen` is reachable from outside, unless callers need something there
    (`is_keyed`: a lease; or a certificate) and the network cannot read along, or `insecure_grpc` lets it.
    """

    def __init__(
        self,
        methods: Mapping[str, Answer],
        listen: str,
        *,
        slots: int,
        is_keyed: bool,
        insecure_grpc: bool,
        certificate: Certificate | None = None,
    ) -> None:
        """Answers calls by their path. Speaks TLS with a `certificate`."""
        self._address = Address.parse(listen)
        if not self._address.is_local:
            _check_exposed(self._address, is_keyed, insecure_grpc, certificate)
        self._health = Health(SERVICES)
        self._methods = {**methods, CHECK: self._health.check, WATCH: self._health.watch}
        tls = certificate.context if certificate is not None else None
        self._door = Door(most_calls(slots), self._answer, tls)

    async def start(self) -> str:
        """Listens, and returns the address to dial. Raises `ConfigurationError` if that is impossible."""
        if self._address.path and _is_served(self._address.path):
            raise ConfigurationError(
                f"Cannot listen on {self._address}: another process does. "
                "Choose another address with --listen, or stop that process."
            )
        try:
            sockets = await asyncio.to_thread(_bind, self._address)
            self._door.open(sockets)
        except (OSError, UnicodeError):
            self._shut()
            raise ConfigurationError(
                f"Cannot listen on {self._address}: it is in use or not allowed. "
                "Choose another address with --listen, or stop what uses it."
            ) from None
        if self._address.path:
            return str(self._address)
        return str(Address(host=self._address.host, port=sockets[0].getsockname()[1]))

    def _answer(self, call: Call) -> None:
        answer = self._methods.get(call.path)
        if answer is None:
            call.end(grpc.StatusCode.UNIMPLEMENTED, "There is no such method.")
        else:
            answer(call)

    def set_serving(self, is_serving: bool) -> None:
        """What the health service says from now on."""
        self._health.set(HealthCheckResponse.SERVING if is_serving else HealthCheckResponse.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Closes the socket; calls still open after `grace_s` seconds are cut."""
        self._shut()
        for connection in list(self._door.connections):
            connection.leave()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._door.all_gone(), grace_s)
        for connection in list(self._door.connections):
            connection.close()

    def _shut(self) -> None:
        if self._door.is_open:
            self._door.shut()
            if self._address.path:
                with suppress(FileNotFoundError):
                    os.unlink(self._address.path)


def _bind(address: Address) -> list[socket.socket]:
    """Sockets that are to listen there."""
    if address.path:
        return [_bind_path(address.path)]
    return _bind_port(address.host.strip("[]"), address.port)


def _bind_path(path: str) -> socket.socket:
    """In the place of a socket that nobody serves any more."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
    except OSError:
        sock.close()
        raise
    return sock


def _bind_port(host: str, port: int) -> list[socket.socket]:
    """One port on all addresses of `host`; the first of them must be free, 0 takes any."""
    sockets: list[socket.socket] = []
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # As everywhere: [::] is all addresses, those of IPv4 too.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if address[0] == "::" else 1)
            sock.bind((address[0], sockets[0].getsockname()[1] if sockets else port, *address[2:]))
        except OSError:
            sock.close()
            if not sockets:
                raise
        else:
            sockets.append(sock)
    return sockets
