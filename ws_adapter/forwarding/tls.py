"""Mutual TLS between adapters, with an authority that signs only their certificates."""

import ssl
from pathlib import Path

from antiphon_service.tls import (
    TlsError,
    client_context,
    load_authority,
    load_identity,
    server_context,
)
from ws_adapter.process.errors import ConfigurationError


class PeerTls:
    """The TLS contexts of both sides. Names in certificates are not checked: adapters have no lasting
    names."""

    def __init__(self, ca: Path, certificate: Path, key: Path) -> None:
        """Read the PEM files; the key has no password. Raises `ConfigurationError`."""
        self._ca, self._certificate, self._key = ca, certificate, key
        self.client = self._of_client()
        """The context of the next connection to another adapter."""
        self.server = self._of_server()
        """The context of all connections from other adapters."""

    def reload(self) -> None:
        """Read the files again; open connections keep their certificates.

        Raises `ConfigurationError`; then the old certificates stay.
        """
        client = self._of_client()
        self._of_server()
        load_identity(self.server, self._certificate, self._key)
        load_authority(self.server, self._ca)
        self.client = client

    def _of_client(self) -> ssl.SSLContext:
        try:
            context = client_context(self._ca, self._certificate, self._key)
        except TlsError as error:
            raise ConfigurationError(str(error)) from None
        context.check_hostname = False
        return context

    def _of_server(self) -> ssl.SSLContext:
        try:
            return server_context(self._certificate, self._key, self._ca)
        except TlsError as error:
            raise ConfigurationError(str(error)) from None
