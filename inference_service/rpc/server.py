"""The worker's gRPC server: where it listens, with which options, and its health."""

import ipaddress
import socket
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from antiphon.semconv import server_options
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.errors import ConfigurationError
from inference_service.rpc.servicer import InferenceServicer
from inference_service.rpc.tls import Certificate

SERVICES = ("", "antiphon.v1.InferenceService")
"""What the health service knows: the server as a whole, and its one service."""

MAX_METADATA_BYTES = 8192

_PROBE_S = 1.0

_OPTIONS = (
    # Finds a caller that is frozen or cut off, whose streams would otherwise hold a slot for ever.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
)


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


def handlers(servicer: InferenceServicer) -> grpc.GenericRpcHandler:
    """The methods of the service. Requests of streams stay bytes: decoding a large one holds the loop."""
    methods: dict[str, Any] = {
        name: grpc.stream_stream_rpc_method_handler(
            getattr(servicer, name), response_serializer=answer.SerializeToString
        )
        for name, answer in (
            ("Prefill", pb.PrefillResponse),
            ("Generate", pb.GenerateResponse),
            ("Finalize", pb.FinalizeResponse),
        )
    }
    methods["GetInfo"] = grpc.unary_unary_rpc_method_handler(
        servicer.GetInfo,
        request_deserializer=pb.GetInfoRequest.FromString,
        response_serializer=pb.GetInfoResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(SERVICES[1], methods)


class WorkerServer:
    """A gRPC server with a health service that says NOT_SERVING until told otherwise.

    Raises `ConfigurationError` if `listen` is reachable from outside, unless callers need something there
    (`is_keyed`: a lease; or a certificate) and the network cannot read along, or `insecure_grpc` lets it.
    """

    def __init__(
        self,
        servicer: InferenceServicer,
        listen: str,
        *,
        slots: int,
        is_keyed: bool,
        insecure_grpc: bool,
        certificate: Certificate | None = None,
    ) -> None:
        """Speaks TLS with a `certificate`."""
        self._address = Address.parse(listen)
        self._certificate = certificate
        if not self._address.is_local:
            _check_exposed(self._address, is_keyed, insecure_grpc, certificate)
        # Kept for life: a server object that loses its last reference stops without a word.
        self._server = grpc.aio.server(options=[*server_options(slots), *_OPTIONS])
        self._health = health.aio.HealthServicer()
        self._server.add_generic_rpc_handlers((handlers(servicer),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self) -> str:
        """Listens, and returns the address to dial. Raises `ConfigurationError` if that is impossible."""
        await self.set_serving(False)
        if self._address.path and _is_served(self._address.path):
            raise ConfigurationError(
                f"Cannot listen on {self._address}: another process does. "
                "Choose another address with --listen, or stop that process."
            )
        try:
            port = self._add_port()
        except RuntimeError:
            raise ConfigurationError(
                f"Cannot listen on {self._address}: it is in use or not allowed. "
                "Choose another address with --listen, or stop what uses it."
            ) from None
        await self._server.start()
        if self._address.path:
            return str(self._address)
        return str(Address(host=self._address.host, port=port))

    def _add_port(self) -> int:
        if self._certificate is None:
            return self._server.add_insecure_port(str(self._address))
        return self._server.add_secure_port(str(self._address), self._certificate.credentials)

    async def set_serving(self, is_serving: bool) -> None:
        """What the health service says from now on."""
        status = health_pb2.HealthCheckResponse
        for service in SERVICES:
            await self._health.set(service, status.SERVING if is_serving else status.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Closes the socket; calls still open after `grace_s` seconds are cut."""
        await self._server.stop(grace_s)
