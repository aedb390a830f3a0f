"""The introduction of a client by the adapter that forwards its connection. Pure: bytes in, an address out.

The adapter that has the session sends a challenge of `CHALLENGE_BYTES` random bytes. The other adapter
answers with a line: a token that holds the challenge and the address of the client, signed with the keys of
client secrets. After the line follow the bytes of the client, from its request on, unchanged.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

from ws_adapter.access.signed_tokens import signed, verified
from ws_adapter.web.message import Disconnected

CHALLENGE_BYTES: Final = 16

LONGEST_LINE: Final = 256
"""The most bytes of an introduction, without its line end."""

_PREFIX: Final = "fw_"
_END: Final = b"\n"
_LONGEST_ADDRESS: Final = 64


class Introductions:
    """Signs introductions, and reads those of other adapters."""

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        """Sign with the first of `keys` and verify with all of them; without any, a random key is made."""
        self.use(keys or (secrets.token_bytes(32),))

    def use(self, keys: Sequence[bytes]) -> None:
        """Sign with the first of these keys from now on, and verify with all of them."""
        self._keys = [hashlib.sha256(b"forwarded connections\0" + key).digest() for key in keys]

    def introduce(self, challenge: bytes, client: str) -> bytes:
        """Return the line that answers a challenge for a client at this address."""
        return signed(_PREFIX, self._keys[0], challenge + client.encode()).encode() + _END

    def read(self, line: bytes, challenge: bytes) -> str | None:
        """Return the client's address in a line; None if the line does not answer the challenge."""
        told = verified(_PREFIX, self._keys, line.decode("ascii", "replace"), LONGEST_LINE)
        if told is None or len(told) > CHALLENGE_BYTES + _LONGEST_ADDRESS:
            return None
        is_answer = hmac.compare_digest(told[:CHALLENGE_BYTES], challenge)
        return told[CHALLENGE_BYTES:].decode("ascii", "replace") if is_answer else None


class IntroductionReader:
    """A reader of the introduction at the beginning of a connection from another adapter."""

    def __init__(self, introductions: Introductions) -> None:
        self.challenge: Final = secrets.token_bytes(CHALLENGE_BYTES)
        """The challenge, which is sent first."""
        self.client = ""
        """The address of the client, once it was introduced."""
        self._introductions = introductions
        self._data = b""

    def feed(self, data: bytes) -> bytes | None:
        """Return the bytes after the introduction; None until that is complete.

        Raises `Disconnected` if it is wrong.
        """
        self._data += data
        line, end, rest = self._data.partition(_END)
        if not end and len(line) <= LONGEST_LINE:
            return None
        client = self._introductions.read(line, self.challenge) if end else None
        if client is None:
            raise Disconnected
        self.client, self._data = client, b""
        return rest
