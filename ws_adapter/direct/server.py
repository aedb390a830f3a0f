"""The gRPC port of an adapter."""

import errno
import os
from typing import Any, Final

import grpc
import grpc.aio

from antiphon.v1.dispatch_service_pb2_grpc import add_DispatchServiceServicer_to_server
from antiphon_service.listening import bind_all
from ws_adapter.direct.service import DispatchServicer
from ws_adapter.options import AdapterOptions
from ws_adapter.process.errors import CannotListen
from ws_adapter.web.tls import Certificate

SPARE_CALLS: Final = 256
"""The most open calls besides those that wait: with a lease, or about to be rejected."""

STOP_GRACE_S: Final = 1.0
"""The seconds for sending the last statuses at shutdown."""

_OPTIONS: Final = (
    # The keepalive detects a frozen or disconnected caller, which would otherwise keep its queue place.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.max_concurrent_streams", 100),
    ("grpc.max_metadata_size", 8_192),
    ("grpc.absolute_max_metadata_size", 8_192),
    ("grpc.max_receive_message_length", 4_096),
    ("grpc.so_reuseport", 0),
)


class DirectServer:
    """Serves DispatchService, with TLS if there is a certificate."""

    def __init__(
        self, options: AdapterOptions, servicer: DispatchServicer, certificate: Certificate | None
    ) -> None:
        self._host, self._port = options.grpc_host, options.grpc_port or 0
        self.servicer = servicer
        self._certificate = certificate
        # gRPC silently stops a server without a reference, so this object keeps one.
        self._server = grpc.aio.server(
            options=_OPTIONS, maximum_concurrent_rpcs=options.queue_capacity + SPARE_CALLS
        )
        add_DispatchServiceServicer_to_server(servicer, self._server)

    async def start(self) -> int:
        """Listen on all addresses of the host; return the port. Raises `CannotListen`.

        gRPC may bind only some of the addresses of a name, so each address is bound separately.
        """
        try:
            sockets = bind_all(self._host, self._port)
            addresses = [sock.getsockname() for sock in sockets]
            for sock in sockets:
                sock.close()
            for host, port, *_ in addresses:
                self._listen_on(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except OSError as error:
            raise CannotListen("--grpc-port", self._host, self._port, error) from error
        await self._server.start()
        bound: int = addresses[0][1]
        return bound

    def _listen_on(self, address: str) -> None:
        try:
            if self._certificate is None:
                self._server.add_insecure_port(address)
            else:
                self._server.add_secure_port(address, _credentials(self._certificate))
        except RuntimeError:  # another process took the port meanwhile
            raise OSError(errno.EADDRINUSE, f"{address}: {os.strerror(errno.EADDRINUSE)}") from None

    async def close(self) -> None:
        """End all calls; the workers keep the sessions of used leases."""
        self.servicer.drain()
        await self._server.stop(STOP_GRACE_S)
        await self.servicer.close()


def _credentials(certificate: Certificate) -> grpc.ServerCredentials:
    """Return credentials that use the current certificate for each new connection."""

    def configuration() -> Any:
        return grpc.ssl_server_certificate_configuration([certificate.pem])

    return grpc.dynamic_ssl_server_credentials(configuration(), configuration)
