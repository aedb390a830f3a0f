"""TLS to workers: the trusted authority and the adapter's certificate, from files that can be reloaded."""

from pathlib import Path
from typing import Final

import grpc

from antiphon_service.tls import TlsError, client_context
from ws_adapter.process.errors import ConfigurationError

_NOT_CONNECTED: Final = "failed to connect to all addresses"
_VERIFY_FAILED: Final = "CERTIFICATE_VERIFY_FAILED: "


class WorkerTls:
    """One authority for all workers, and the adapter's own certificate for workers that ask for one."""

    def __init__(
        self, ca: Path, certificate: Path | None = None, key: Path | None = None, name: str | None = None
    ) -> None:
        """Read the PEM files; the key has no password. Raises `ConfigurationError`."""
        self._ca, self._certificate, self._key = ca, certificate, key
        self.name = name
        """The name that every worker's certificate must have; None is the dialled host."""
        self.reload()

    @property
    def shows_certificate(self) -> bool:
        """Whether the adapter has a certificate of its own."""
        return self._certificate is not None

    def reload(self) -> None:
        """Read the files again; open connections keep their certificates.

        Raises `ConfigurationError`; then the old credentials stay.
        """
        try:
            client_context(self._ca, self._certificate, self._key)  # grpcio does not report an unusable file
        except TlsError as error:
            raise ConfigurationError(str(error)) from None
        self.credentials = grpc.ssl_channel_credentials(
            self._ca.read_bytes(),
            self._key.read_bytes() if self._key is not None else None,
            self._certificate.read_bytes() if self._certificate is not None else None,
        )
        """The credentials of the next connection."""


def explain(text: str, tls: WorkerTls | None) -> str:
    """Return a readable reason if grpcio could not connect; return other texts unchanged."""
    if not text.startswith(_NOT_CONNECTED):
        return text
    return f"the worker cannot be reached: {_cause(text, tls)}"


def _cause(text: str, tls: WorkerTls | None) -> str:
    if "Hostname Verification Check failed" in text:
        return "its certificate is not accepted: it is not valid for this name"
    if _VERIFY_FAILED in text:
        why = text.rpartition(_VERIFY_FAILED)[2].removesuffix(": OK")
        return f"its certificate is not accepted: {why}"
    if "WRONG_VERSION_NUMBER" in text:
        return "TLS failed: it does not speak TLS"
    if not text.endswith("Socket closed"):
        return text.rpartition("last error: ")[2]
    if tls is None:
        return "it closed the connection; if it wants TLS, pass --worker-ca"
    if not tls.shows_certificate:
        return "it closed the connection; if it wants a certificate, pass --worker-cert and --worker-cert-key"
    return "it closed the connection; it may not trust the authority that signed --worker-cert"
