"""Tokens that this service signs and verifies: a prefix, then base64url of an HMAC-SHA256 and a body."""

import base64
import binascii
import hmac
from collections.abc import Sequence
from typing import Final

_SIGNATURE_BYTES: Final = 32


def signed(prefix: str, key: bytes, body: bytes) -> str:
    """Return the token that holds `body`, signed with `key`."""
    data = hmac.digest(key, body, "sha256") + body
    return prefix + base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def verified(prefix: str, keys: Sequence[bytes], token: str, longest: int) -> bytes | None:
    """Return the body of a token; None if it has more than `longest` characters or no key signed it.

    All keys are compared in constant time.
    """
    text = token.removeprefix(prefix)
    if text == token or len(token) > longest or not text.isascii():
        return None
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except binascii.Error:
        return None
    signature, body = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
    is_signed = any([hmac.compare_digest(signature, hmac.digest(key, body, "sha256")) for key in keys])
    return body if is_signed else None
