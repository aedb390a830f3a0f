"""The certificate of the TLS listener, which can be replaced while it listens."""

import ssl
from pathlib import Path

from antiphon_service.tls import TlsError, load_identity, server_context
from ws_adapter.process.errors import ConfigurationError


class Certificate:
    """A certificate chain with its key, and the context that new connections use."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Read both PEM files; the key has no password. Raises `ConfigurationError`."""
        self._certificate = certificate
        self._key = key
        self.context = self._read()
        self.context.set_alpn_protocols(["http/1.1"])
        self.pem = self._texts()
        """The key and the chain in PEM, for modules that make their own context."""

    def reload(self) -> None:
        """Read both files again; open connections keep the old certificate.

        Raises `ConfigurationError`; then the old certificate stays.
        """
        self._read()
        load_identity(self.context, self._certificate, self._key)
        self.pem = self._texts()

    def _texts(self) -> tuple[bytes, bytes]:
        return self._key.read_bytes(), self._certificate.read_bytes()

    def _read(self) -> ssl.SSLContext:
        try:
            return server_context(self._certificate, self._key)
        except TlsError as error:
            raise ConfigurationError(str(error)) from None
