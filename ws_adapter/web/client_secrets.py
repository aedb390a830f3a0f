"""Client secrets: what a server that has a key asks for, so that a browser can come in without one.

A secret holds all that it stands for, and a signature: nothing is kept, and every adapter that has the same
signing key takes it. It is `ek_`, then base64url of the HMAC-SHA256 of what follows: a version, when it
expires, the first half of the hash of the key that it was made with, and the settings of the session,
compressed. Who has a secret can read them, as in the first event of a session.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
import struct
import zlib
from typing import Final, NamedTuple

from ws_adapter.process.clock import Clock

PREFIX: Final = "ek_"

SHORTEST_S: Final = 10
LONGEST_S: Final = 7200
DEFAULT_S: Final = 600
"""How long a secret opens sessions."""

SHORTEST_KEY: Final = 16
"""Bytes of a signing key."""

LONGEST_SECRET: Final = 6144
"""Characters: it has to stand in one line of a request beside other things, which has at most 8192."""

_VERSION: Final = 1
_HEAD: Final = struct.Struct("!BI16s")
_SIGNATURE_BYTES: Final = 32
_NOBODY: Final = bytes(16)


class TooLong(Exception):
    """The settings of a session do not fit into a secret."""


class Grant(NamedTuple):
    """What a secret stands for. `session` is JSON."""

    holder: bytes
    """The first half of the hash of a key; zeros where no key was needed."""

    session: bytes


class ClientSecrets:
    """Makes and reads them."""

    def __init__(self, key: bytes | None, clock: Clock) -> None:
        """Adapters take each other's secrets if they have the same `key`; None makes one of its own."""
        self._key = hashlib.sha256(b"client secrets\0" + (key or secrets.token_bytes(32))).digest()
        self._clock = clock

    def make(self, key_hash: str | None, session: bytes, seconds: int) -> tuple[str, int]:
        """A secret, and the Unix time in seconds at which it expires. Raises `TooLong`.

        `key_hash` is that of the key it is asked for with, None where none is needed.
        """
        expires_at = int(self._clock.unix()) + seconds
        holder = bytes.fromhex(key_hash)[: len(_NOBODY)] if key_hash is not None else _NOBODY
        told = _HEAD.pack(_VERSION, expires_at, holder) + zlib.compress(session)
        value = PREFIX + base64.urlsafe_b64encode(self._sign(told) + told).rstrip(b"=").decode()
        if len(value) > LONGEST_SECRET:
            raise TooLong
        return value, expires_at

    def read(self, value: str) -> Grant | None:
        """What a secret stands for; None if it was not made here, or has expired."""
        text = value.removeprefix(PREFIX)
        if text == value or len(value) > LONGEST_SECRET or not text.isascii():
            return None
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        except binascii.Error:
            return None
        signature, told = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(told)):
            return None
        version, expires_at, holder = _HEAD.unpack_from(told)
        if version != _VERSION or self._clock.unix() >= expires_at:
            return None
        return Grant(holder, zlib.decompress(told[_HEAD.size :]))

    def _sign(self, told: bytes) -> bytes:
        return hmac.digest(self._key, told, "sha256")
