"""The certificate of the worker, which can be replaced while it listens."""

from pathlib import Path

import grpc

from antiphon.tls import TlsError, server_context
from inference_service.errors import ConfigurationError


class Certificate:
    """A certificate chain with its key, and the authority that callers need, if they need one."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        """Reads the files: PEM, the key without a password. Raises `ConfigurationError`."""
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self.asks = client_ca is not None
        """Whether callers need a certificate."""
        self._shown = self._read()
        self.credentials = grpc.dynamic_ssl_server_credentials(
            self._shown, lambda: self._shown, require_client_authentication=self.asks
        )
        """For the server's port; each handshake uses what was read last."""

    def reload(self) -> None:
        """Reads them again; connections that stand keep what they have.

        Raises `ConfigurationError`, and then the old ones stay.
        """
        self._shown = self._read()

    def _read(self) -> grpc.ServerCertificateConfiguration:
        try:
            server_context(self._certificate, self._key, self._client_ca)
        except TlsError as error:
            raise ConfigurationError(str(error)) from None
        authority = self._client_ca.read_bytes() if self._client_ca is not None else None
        pair = (self._key.read_bytes(), self._certificate.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authority)
