"""The certificate of the worker, which can be replaced while it listens."""

import ssl
from pathlib import Path

from antiphon.http2.grpc import ALPN
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
        self.context = self._read()
        """For the server's port; each handshake uses what was read last."""
        self.context.sni_callback = self._show

    def reload(self) -> None:
        """Reads them again; connections that stand keep what they have.

        Raises `ConfigurationError`, and then the old ones stay.
        """
        self._shown = self._read()

    def _show(self, handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called in each handshake, also of those who say no name."""
        handshake.context = self._shown

    def _read(self) -> ssl.SSLContext:
        try:
            context = server_context(self._certificate, self._key, self._client_ca)
        except TlsError as error:
            raise ConfigurationError(str(error)) from None
        context.set_alpn_protocols([ALPN])
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
        context.num_tickets = 0  # nobody comes back past an authority that was replaced
        return context
