"""Resume tokens: a client presents one to get its session back over another connection.

A token is `rs_`, then base64url of an HMAC-SHA256 and of the signed body. The body has a version, the
holder, a nonce, a mark of the owner, and the id of the session. The holder is the first half of the hash of
the key that opened the session; the owner is the adapter that has the session. The nonce is new at every
resume, and a session accepts only its last nonce: a token resumes a session once. The mark is an HMAC of the
nonce and the owner's id. Only adapters can identify the owner from it, and the marks of one adapter cannot be
linked.
"""

import hashlib
import hmac
import secrets
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from ws_adapter.access.signed_tokens import signed, verified

PREFIX: Final = "rs_"

LONGEST_TOKEN: Final = 256
"""The most characters of a token."""

NONCE_BYTES: Final = 16

_MARK_BYTES: Final = 8
_VERSION: Final = 2
_HEAD: Final = struct.Struct(f"!B16s{NONCE_BYTES}s{_MARK_BYTES}s")
_NO_HOLDER: Final = bytes(16)


class Claim(NamedTuple):
    """The content of a token that was signed here."""

    session_id: str
    holder: bytes
    """The first half of the hash of a key; zeros where no key was needed."""
    nonce: bytes
    mark: bytes
    """The mark of the adapter that has the session."""


class ResumeTokens:
    """The signer and verifier of resume tokens."""

    def __init__(self, keys: Sequence[bytes] = (), adapter_id: str = "") -> None:
        """Sign with the first of `keys` and verify with all of them; without any, a random key is made."""
        self._adapter_id = adapter_id
        self.use(keys or (secrets.token_bytes(32),))

    def use(self, keys: Sequence[bytes]) -> None:
        """Sign with the first of these keys from now on, and verify with all of them."""
        self._keys = [hashlib.sha256(b"resume tokens\0" + key).digest() for key in keys]

    def make(self, session_id: str, holder: bytes, nonce: bytes | None = None) -> tuple[str, bytes]:
        """Make a token; return it and its nonce, which is new if `nonce` is None."""
        nonce = nonce or new_nonce()
        mark = _mark(self._keys[0], nonce, self._adapter_id)
        told = _HEAD.pack(_VERSION, holder, nonce, mark) + session_id.encode()
        return signed(PREFIX, self._keys[0], told), nonce

    def read(self, value: str) -> Claim | None:
        """Return the claim of a token; None if it was not signed here."""
        told = verified(PREFIX, self._keys, value, LONGEST_TOKEN)
        if told is None:
            return None
        if told[:1] != bytes((_VERSION,)):
            return None  # made by an adapter of another version
        _, holder, nonce, mark = _HEAD.unpack_from(told)
        return Claim(told[_HEAD.size :].decode(), holder, nonce, mark)

    def is_of(self, claim: Claim, adapter_id: str) -> bool:
        """Return whether the adapter with this id made a token."""
        marks = [_mark(key, claim.nonce, adapter_id) for key in self._keys]
        return any([hmac.compare_digest(mark, claim.mark) for mark in marks])

    def is_own(self, claim: Claim) -> bool:
        """Return whether this adapter made the token."""
        return self.is_of(claim, self._adapter_id)


def _mark(key: bytes, nonce: bytes, adapter_id: str) -> bytes:
    return hmac.digest(key, b"adapter\0" + nonce + adapter_id.encode(), "sha256")[:_MARK_BYTES]


def new_nonce() -> bytes:
    """Return a nonce that no other token has."""
    return secrets.token_bytes(NONCE_BYTES)


def holder_of(key_hash: str | None) -> bytes:
    """Return the holder field of a token; None stands for a session without a key."""
    return bytes.fromhex(key_hash)[: len(_NO_HOLDER)] if key_hash is not None else _NO_HOLDER
