"""The worker's TLS certificate, replaceable while the worker listens."""

import threading
from pathlib import Path

import grpc

from antiphon_service.tls import TlsError, server_context
from inference_service.errors import ConfigurationError


class Certificate:
    """A certificate chain with its key, and the authority that signs callers' certificates, if any."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        """Read the files: PEM, the key without a password. Raises `ConfigurationError`."""
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self.is_mutual = client_ca is not None
        """Whether callers need a certificate (mTLS)."""
        self._lock = threading.Lock()
        self._fresh: grpc.ServerCertificateConfiguration | None = None
        """A configuration that no handshake has used yet; None once gRPC has it."""
        self.credentials = grpc.dynamic_ssl_server_credentials(
            self._read(),
            self._fetch,  # type: ignore[arg-type]  # None, which the stubs leave out, means no change
            require_client_authentication=self.is_mutual,
        )
        """Credentials for the server's ports; each handshake uses the newest certificate."""

    def reload(self) -> None:
        """Read the files again; established connections keep the old certificate.

        Raises `ConfigurationError` and keeps the old certificate if they are invalid.
        """
        fresh = self._read()
        with self._lock:
            self._fresh = fresh

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return a configuration that gRPC does not have yet; called by its threads in each handshake."""
        with self._lock:
            fresh, self._fresh = self._fresh, None
        return fresh

    def _read(self) -> grpc.ServerCertificateConfiguration:
        try:
            server_context(self._certificate, self._key, self._client_ca)  # checks that they fit together
        except TlsError as error:
            raise ConfigurationError(str(error)) from None
        authority = self._client_ca.read_bytes() if self._client_ca is not None else None
        pair = (self._key.read_bytes(), self._certificate.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authority)
