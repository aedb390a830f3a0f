"""Client secrets: short-lived tokens that a server with a key requests for a browser without one.

A secret contains its rights and settings, and a signature. The adapter stores nothing, and every adapter with
the signing key accepts the secret. Its form is `ek_`, then base64url of an HMAC-SHA256 and a body: a version,
the expiry, the first half of the hash of the key that it was made with, and compressed JSON of the rights and
of the session settings. The holder of a secret can read all of this.
"""

import hashlib
import secrets
import struct
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from ws_adapter.access.rights import ALL_RIGHTS, Rights
from ws_adapter.access.signed_tokens import signed, verified
from ws_adapter.process.clock import Clock
from ws_adapter.protocol.core.config import Mode

PREFIX: Final = "ek_"

SHORTEST_S: Final = 10
LONGEST_S: Final = 7200
DEFAULT_S: Final = 600
"""The default lifetime of a secret, in seconds."""

LONGEST_SECRET: Final = 6144
"""The most characters of a secret: with other data it must fit into one request line of at most 8192."""

_VERSION: Final = 2
_HEAD: Final = struct.Struct("!BI16s")
_NO_HOLDER: Final = bytes(16)


class TooLong(Exception):
    """The settings of a session do not fit into a secret."""


class Grant(NamedTuple):
    """The grant of a secret. `session` is JSON."""

    holder: bytes
    """The first half of the hash of the key that it was made with; zeros if no key was needed."""

    rights: Rights
    """The rights that the secret is bound to."""

    session: bytes


class _SecretBody(Struct, omit_defaults=True):
    """The body of a secret, after its head."""

    session: msgspec.Raw
    modes: frozenset[Mode] | None = None
    models: frozenset[str] | None = None
    origins: frozenset[str] | None = None


_decoder: Final = msgspec.json.Decoder(_SecretBody)


class ClientSecrets:
    """The client secrets of one set of signing keys."""

    def __init__(self, keys: Sequence[bytes], clock: Clock) -> None:
        """Sign with the first of `keys` and accept secrets signed with any of them; without one a random
        key is made."""
        self._clock = clock
        self.use(keys or (secrets.token_bytes(32),))

    def use(self, keys: Sequence[bytes]) -> None:
        """Sign with the first of these keys from now on, and verify with all of them."""
        self._keys = [hashlib.sha256(b"client secrets\0" + key).digest() for key in keys]

    def make(self, key_hash: str | None, session: bytes, expires_at: int, rights: Rights = ALL_RIGHTS) -> str:
        """Make a secret that is valid until `expires_at`, in Unix seconds. Raises `TooLong`.

        `key_hash` is that of the key of the request, None if no key is needed; `rights` are those that the
        secret is bound to.
        """
        holder = bytes.fromhex(key_hash)[: len(_NO_HOLDER)] if key_hash is not None else _NO_HOLDER
        body = msgspec.json.encode(
            _SecretBody(msgspec.Raw(session), rights.modes, rights.models, rights.origins)
        )
        data = _HEAD.pack(_VERSION, expires_at, holder) + zlib.compress(body)
        value = signed(PREFIX, self._keys[0], data)
        if len(value) > LONGEST_SECRET:
            raise TooLong
        return value

    def read(self, value: str, *, may_have_expired: bool = False) -> Grant | None:
        """Return the grant of a secret; None if no key signed it, or if it has expired.

        With `may_have_expired` an expired secret is valid too.
        """
        data = verified(PREFIX, self._keys, value, LONGEST_SECRET)
        if data is None:
            return None
        version, expires_at, holder = _HEAD.unpack_from(data)
        if version != _VERSION or (self._clock.unix() >= expires_at and not may_have_expired):
            return None
        body = _decoder.decode(zlib.decompress(data[_HEAD.size :]))
        return Grant(holder, Rights(body.modes, body.models, body.origins), bytes(body.session))
