"""Resume tokens: what a client shows to get its session back over another connection.

A token is `rs_`, then base64url of an HMAC-SHA256 and of what that signs: a version, the first half of the
hash of the key that the session was opened with, a nonce, and the id of the session. The nonce is new at
every resume, and a session knows only its last one: a token opens a session once.
"""

import hashlib
import secrets
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from ws_adapter.web.signed_tokens import signed, verified

PREFIX: Final = "rs_"

LONGEST_TOKEN: Final = 256
"""Characters."""

NONCE_BYTES: Final = 16

_VERSION: Final = 1
_HEAD: Final = struct.Struct(f"!B16s{NONCE_BYTES}s")
_NOBODY: Final = bytes(16)


class Claim(NamedTuple):
    """What a token says that was signed here."""

    session_id: str
    holder: bytes
    """The first half of the hash of a key; zeros where no key was needed."""
    nonce: bytes


class ResumeTokens:
    """Makes and reads them."""

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        """The first of `keys` signs, and all of them verify; without one a key is made that nobody else
        has."""
        self.use(keys or (secrets.token_bytes(32),))

    def use(self, keys: Sequence[bytes]) -> None:
        """Sign with the first of these keys from now on, and verify with all of them."""
        self._keys = [hashlib.sha256(b"resume tokens\0" + key).digest() for key in keys]

    def make(self, session_id: str, holder: bytes) -> tuple[str, bytes]:
        """Make a token; return it with its nonce."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        told = _HEAD.pack(_VERSION, holder, nonce) + session_id.encode()
        return signed(PREFIX, self._keys[0], told), nonce

    def read(self, value: str) -> Claim | None:
        """Return what a token says; None if it was not signed here."""
        told = verified(PREFIX, self._keys, value, LONGEST_TOKEN)
        if told is None:
            return None
        version, holder, nonce = _HEAD.unpack_from(told)
        if version != _VERSION:
            return None
        return Claim(told[_HEAD.size :].decode(), holder, nonce)


def holder_of(key_hash: str | None) -> bytes:
    """Return what a token says of the key behind a session; None where no key was needed."""
    return bytes.fromhex(key_hash)[: len(_NOBODY)] if key_hash is not None else _NOBODY
