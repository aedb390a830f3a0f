"""Lease tokens, as dispatchers write and workers read them.

A token is the right to one session in one slot of one worker. It travels as the metadata `antiphon-lease`:

    <slot>:<epoch>:2.<tenant>.<max_duration_ms>.<idle_timeout_ms>:<mac>

The third part holds the claims: 2 is the version of the encoding, the tenant is 32 hexadecimal digits, and a
limit of 0 means no limit. `lease_mac` computes the MAC; it is empty where dispatcher and worker share no key.
A dispatcher of the previous release leaves the claims out: `<slot>:<epoch>:<mac>`. A dispatcher does the same
for a worker of the previous release.
"""

import hashlib
import hmac
import math
import re
from typing import Final, NamedTuple

DEFAULT_POOL: Final = "default"
"""The pool name in every lease's signature; the real pool is not needed, since worker ids are unique."""

MIN_WORKER_KEY_BYTES: Final = 16
"""The shortest key in bytes with which dispatchers sign leases and workers check them."""

CLAIMS_VERSION: Final = 2
"""The version of the encoding of claims; workers report it as `GetInfoResponse.lease_version`."""

HIGHEST_EPOCH: Final = 2**52
"""The highest epoch: dispatchers that store numbers as doubles still represent the next ones exactly."""

_MAC_BYTES: Final = 16
_NUMBER: Final = r"(0|[1-9][0-9]{0,18})"
_CLAIMS: Final = rf"{CLAIMS_VERSION}\.([0-9a-f]{{32}})\.{_NUMBER}\.{_NUMBER}"
_TOKEN: Final = re.compile(rf"{_NUMBER}:{_NUMBER}:(?:({_CLAIMS}):)?([0-9a-f]{{32}})?", re.ASCII)


def lease_mac(key: bytes, pool: str, worker_id: str, slot: int, epoch: int, claims: str = "") -> str:
    """Return the MAC of a lease: the first 16 bytes of HMAC-SHA256, as 32 hexadecimal digits.

    `claims` are the token's claims as text, signed as a line of their own. No other signed field contains a
    line break, so a MAC without claims never fits a token with claims.
    """
    text = f"{pool}\n{worker_id}\n{slot}\n{epoch}" + (f"\n{claims}" if claims else "")
    return hmac.digest(key, text.encode(), hashlib.sha256)[:_MAC_BYTES].hex()


class Claims(NamedTuple):
    """The terms of a session, signed by its dispatcher. A limit of 0 means no limit."""

    tenant: str
    """The tenant of the session: 32 hexadecimal digits that reveal nothing about its caller."""
    max_duration_s: float = 0.0
    idle_timeout_s: float = 0.0

    @property
    def text(self) -> str:
        """The claims as they stand in a token."""
        limits = (self.max_duration_s, self.idle_timeout_s)
        return ".".join([str(CLAIMS_VERSION), self.tenant, *(str(math.ceil(s * 1000)) for s in limits)])


class Token(NamedTuple):
    """The parts of a lease token; call `is_signed` before you trust them."""

    slot: int
    epoch: int
    claims: Claims | None
    """The claims; None if the dispatcher signs none."""
    signed_text: str
    mac: str

    def is_signed(self, key: bytes, worker_id: str) -> bool:
        """Return whether the token was signed with `key` for this worker; compare in constant time."""
        expected = lease_mac(key, DEFAULT_POOL, worker_id, self.slot, self.epoch, self.signed_text)
        return hmac.compare_digest(expected, self.mac)


def write_token(key: bytes | None, worker_id: str, slot: int, epoch: int, claims: Claims | None) -> str:
    """Return the token of one lease, without a MAC where there is no key."""
    text = "" if claims is None else claims.text
    mac = "" if key is None else lease_mac(key, DEFAULT_POOL, worker_id, slot, epoch, text)
    return ":".join([str(slot), str(epoch), *([text] if text else []), mac])


def read_token(text: str) -> Token | None:
    """Return the parts of a token, None if it is malformed."""
    match = _TOKEN.fullmatch(text)
    if match is None or int(match[2]) > HIGHEST_EPOCH:
        return None
    signed_text, claims = match[3] or "", None
    if signed_text:
        claims = Claims(match[4], int(match[5]) / 1000, int(match[6]) / 1000)
    return Token(int(match[1]), int(match[2]), claims, signed_text, match[7] or "")
