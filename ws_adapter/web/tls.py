"""The certificate of the TLS listener, which can be replaced while it listens."""

import ssl
from pathlib import Path

from ws_adapter.process.errors import ConfigurationError


class Certificate:
    """A certificate chain with its key, and the context that new connections use."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Reads both files, PEM, the key without a password. Raises `ConfigurationError`."""
        self._certificate = certificate
        self._key = key
        self.context = self._read()
        self.pem = self._texts()
        """The key and the chain, for those who make their own context."""

    def reload(self) -> None:
        """Reads both again; connections that stand keep what they have.

        Raises `ConfigurationError`, and then the old certificate stays.
        """
        self._read()
        self.context.load_cert_chain(self._certificate, self._key, password="")
        self.pem = self._texts()

    def _texts(self) -> tuple[bytes, bytes]:
        return self._key.read_bytes(), self._certificate.read_bytes()

    def _read(self) -> ssl.SSLContext:
        for path in (self._certificate, self._key):
            try:
                path.open("rb").close()
            except OSError as error:
                raise ConfigurationError(f"Cannot read {path} for TLS: {error.strerror}.") from None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        try:
            # With a password given OpenSSL does not ask the terminal for one.
            context.load_cert_chain(self._certificate, self._key, password="")
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None)
            why = reason.lower().replace("_", " ") if reason else "no certificate or no key in PEM format"
            raise ConfigurationError(
                f"Cannot use {self._certificate} with the key {self._key} for TLS: "
                f"{why}. "
                "Name a PEM certificate chain and its key without a password."
            ) from None
        return context
