"""TLS contexts of servers and clients from PEM files: certificates, keys, authorities."""

import ssl
from pathlib import Path


class TlsError(Exception):
    """The error for files that cannot be used for TLS; the message names them."""


def server_context(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """Return the context of a server; with `client_ca`, clients need a certificate that it has signed.

    `certificate` is a whole chain; its key has no password. Raises `TlsError`.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_identity(context, certificate, key)
    if client_ca is not None:
        load_authority(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca: Path, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """Return the context of a client that trusts only `ca`, and checks the names of servers.

    `certificate` and its `key` are the client certificate for servers that require one. Raises `TlsError`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.options |= ssl.OP_NO_RENEGOTIATION
    load_authority(context, ca)
    if certificate is not None and key is not None:
        load_identity(context, certificate, key)
    return context


def load_identity(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Load the certificate that `context` presents from now on. Raises `TlsError`."""
    for path in (certificate, key):
        _check_readable(path)
    try:
        # Without a password OpenSSL would ask the terminal for one.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None)
        why = reason.lower().replace("_", " ") if reason else "no certificate or no key in PEM format"
        raise TlsError(
            f"Cannot use {certificate} with the key {key} for TLS: {why}. "
            "Name a PEM certificate chain and its key without a password."
        ) from None


def load_authority(context: ssl.SSLContext, ca: Path) -> None:
    """Add `ca` to the authorities that `context` trusts. Raises `TlsError`."""
    _check_readable(ca)
    try:
        context.load_verify_locations(ca)
    except (ssl.SSLError, OSError):
        raise TlsError(
            f"Cannot use {ca} as an authority for TLS: there is no certificate in PEM format. "
            "Name the certificate of the authority that signed the peer's."
        ) from None


def _check_readable(path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise TlsError(f"Cannot read {path} for TLS: {error.strerror}.") from None
