"""TLS to workers: whom the adapter trusts and what it shows, read from files that may be replaced."""

import ssl
from pathlib import Path
from typing import Final

from antiphon.http2.grpc import ALPN
from antiphon.tls import TlsError, client_context
from ws_adapter.process.errors import ConfigurationError

_MEANINGS: Final = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a certificate, pass --worker-cert and --worker-cert-key",
}
"""What an error of OpenSSL's means here, where its own words do not say it."""


class WorkerTls:
    """One authority for all workers, and the adapter's own certificate for those that ask for one."""

    def __init__(
        self, ca: Path, certificate: Path | None = None, key: Path | None = None, name: str | None = None
    ) -> None:
        """Reads the files: PEM, the key without a password. Raises `ConfigurationError`."""
        self._ca, self._certificate, self._key = ca, certificate, key
        self.name = name
        """Name that every worker's certificate must have; None is the host that is dialled."""
        self.reload()

    def reload(self) -> None:
        """Reads them again; connections that stand keep what they have.

        Raises `ConfigurationError`, and then the old ones stay.
        """
        try:
            context = client_context(self._ca, self._certificate, self._key)
        except TlsError as error:
            raise ConfigurationError(str(error)) from None
        context.set_alpn_protocols([ALPN])
        self.context = context
        """For the next connection."""
        self.ca = self._ca.read_bytes()
        self.certificate = self._certificate.read_bytes() if self._certificate is not None else None
        self.key = self._key.read_bytes() if self._key is not None else None


def explain(error: Exception) -> str:
    """Why no connection came about, or why it ended, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        meaning = _MEANINGS.get(error.reason, error.reason.lower().replace("_", " "))
        return f"TLS failed: {meaning}"
    if isinstance(error, ConnectionResetError):
        return "it cut the connection"
    return str(error) or type(error).__name__
