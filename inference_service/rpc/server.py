"""The worker's gRPC server: options, ports, health and reflection."""

import asyncio
import os
import resource
import socket
import stat
from contextlib import suppress
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from antiphon.contract import BOTH_SIDES_OPTIONS, ChannelOptions
from inference_service.errors import ConfigurationError
from inference_service.rpc.address import Address
from inference_service.rpc.certificate import Certificate

SERVICES: Final = ("", "antiphon.v1.InferenceService")
"""Names that the health service knows: the server as a whole, and its one service."""

MAX_METADATA_BYTES: Final = 8192
MAX_CONNECTIONS: Final = 1024
HANDSHAKE_S: Final = 5.0
"""Limit in seconds for TLS and for the first settings of HTTP/2, each."""
IDLE_CONNECTION_S: Final = 300.0
"""Limit in seconds for a connection without a call."""

_PROBE_S: Final = 1.0
_IDENTITY_ONLY: Final = 1
_IDENTITY_AND_GZIP: Final = 1 << 2 | 1


def max_streams(slots: int) -> int:
    """Return the limit of open calls of a connection: three for each session, and a margin."""
    return 4 * slots + 16


def server_options(slots: int, *, compresses: bool) -> ChannelOptions:
    """Return the gRPC channel arguments of a worker with `slots` slots; times in milliseconds.

    A connection's age stays unlimited: an age limit would cut live sessions. Without `compresses` a
    compressed message is refused with UNIMPLEMENTED: gRPC bounds what arrives, not what it expands to.
    """
    return (
        *BOTH_SIDES_OPTIONS,
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", max_streams(slots)),
        ("grpc.max_allowed_incoming_connections", _max_connections()),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
        ("grpc.http2.settings_timeout", int(HANDSHAKE_S * 1000)),
        ("grpc.max_connection_idle_ms", int(IDLE_CONNECTION_S * 1000)),
        # Keepalive enforcement: a client may ping as CLIENT_OPTIONS does, with half its interval since a ping
        # may arrive early; one that pings more often is disconnected with `too_many_pings`.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # A unit arrives in one frame. The default is several, which wait for the flow-control window.
        ("grpc.http2.lookahead_bytes", 2**17),
        ("grpc.http2.max_frame_size", 2**17),
        # Two processes on one port would split the streams of a session between them.
        ("grpc.so_reuseport", 0),
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_AND_GZIP if compresses else _IDENTITY_ONLY),
    )


def _max_connections() -> int:
    """Return the limit of connections, which leaves half of the process's descriptors for other uses."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MAX_CONNECTIONS, descriptors // 2)


def _check_exposed(
    address: Address, is_keyed: bool, insecure_grpc: bool, certificate: Certificate | None
) -> None:
    if not is_keyed and (certificate is None or not certificate.is_mutual):
        raise ConfigurationError(
            f"Refusing to listen on {address} without a worker key: everybody who reaches it could take its "
            "slots. Name a key with --worker-key-file or ANTIPHON_WORKER_KEY, or with TLS an authority of "
            "callers with --tls-client-ca, or listen on loopback or a Unix socket."
        )
    if certificate is None and not insecure_grpc:
        raise ConfigurationError(
            f"Refusing to listen on {address}: gRPC is plain text there, so anybody who can read the "
            "traffic hears the sessions and can use their leases. Pass --tls-cert and --tls-key, listen on "
            "loopback or a Unix socket, or pass --insecure-grpc if the network is trusted."
        )


class WorkerServer:
    """A `grpc.aio` server with reflection and health, which is NOT_SERVING until `set_serving`.

    If `listen` is reachable from other machines, callers must need a lease (`is_keyed`) or a certificate, and
    the traffic must be encrypted unless `insecure_grpc` permits plain text. With `compresses`, callers from
    other machines must need a certificate. Raises `ConfigurationError` otherwise.
    """

    def __init__(
        self,
        methods: grpc.GenericRpcHandler,
        listen: str,
        *,
        slots: int,
        is_keyed: bool,
        insecure_grpc: bool,
        certificate: Certificate | None = None,
        compresses: bool = False,
    ) -> None:
        """Create the server, with TLS if there is a `certificate`; with `compresses` it reads and writes
        gzip.
        """
        self._address = Address.parse(listen)
        is_mutual = certificate is not None and certificate.is_mutual
        if not self._address.is_local:
            _check_exposed(self._address, is_keyed, insecure_grpc, certificate)
            if compresses and not is_mutual:
                raise ConfigurationError(
                    f"Refusing to read compressed messages on {self._address} from callers without a "
                    "certificate: a message of 32 MiB can expand to 32 GiB, and gRPC sets no bound. Name an "
                    "authority of callers with --tls-client-ca, or leave --grpc-compression out."
                )
        self._certificate = certificate
        self._is_bound = False
        # Keep the reference: a server object stops without notice when it is garbage collected.
        self._server = grpc.aio.server(
            options=server_options(slots, compresses=compresses),
            compression=grpc.Compression.Gzip if compresses else None,
        )
        self._health = health.aio.HealthServicer()
        self._server.add_generic_rpc_handlers((methods,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (SERVICES[1], health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )

    async def start(self) -> str:
        """Listen, and return the address to dial.

        Raises `ConfigurationError` if one of the addresses cannot be listened on.
        """
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        path = self._address.path
        is_taken = await asyncio.to_thread(_is_served, path) if path else False
        if is_taken:
            raise ConfigurationError(
                f"Cannot listen on {self._address}: another process listens there. "
                "Choose another address with --listen, or stop that process."
            )
        bound = await self._bind()
        await self._server.start()
        return bound

    async def _bind(self) -> str:
        """Bind all addresses of the host. Port 0 takes a free port on the first, the same on the others."""
        address = self._address
        try:
            if address.path:
                self._add_port(str(address))
            else:
                port = address.port
                for host in await asyncio.to_thread(address.resolve):
                    port = self._add_port(f"{host}:{port}")
                address = Address(host=address.host, port=port)
        except (OSError, RuntimeError, UnicodeError):
            raise ConfigurationError(
                f"Cannot listen on {address}: one of its addresses is in use or not allowed. "
                "Choose another address with --listen, or stop what uses it."
            ) from None
        self._is_bound = True
        return str(address)

    def _add_port(self, address: str) -> int:
        """Return the bound port. Raises `RuntimeError`."""
        if self._certificate is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, self._certificate.credentials)

    async def set_serving(self, is_serving: bool) -> None:
        """Set the state of the health service."""
        status = health_pb2.HealthCheckResponse
        await self._set_health(status.SERVING if is_serving else status.NOT_SERVING)

    async def _set_health(self, status: Any) -> None:
        for service in SERVICES:
            await self._health.set(service, status)

    async def stop(self, grace_s: float) -> None:
        """Close the ports; cancel calls that are open after `grace_s` seconds."""
        await self._server.stop(grace_s)
        if self._address.path and self._is_bound:
            with suppress(FileNotFoundError):
                os.unlink(self._address.path)


def _is_served(path: str) -> bool:
    """Return whether a process listens on the socket `path`; gRPC would silently replace it."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except (BlockingIOError, TimeoutError):
            return True  # its queue of connections is full
        except (OSError, ValueError):
            return False
    return True
