"""The signing keys of client secrets: the first one signs, all of them verify.

A file or variable has one key on each line; empty lines and lines that begin with `#` are skipped. To rotate
keys, append the new key at every adapter, then move it to the first place, and remove the old keys when the
secrets that they signed have expired.
"""

from pathlib import Path
from typing import Final

from ws_adapter.process.errors import ConfigurationError

SHORTEST_KEY: Final = 16
"""The fewest bytes of a key."""

MOST_KEYS: Final = 8
"""The most keys: verifying a secret tries all of them."""

SOURCE: Final = "ANTIPHON_CLIENT_SECRET_KEY"
"""The environment variable that may hold the keys."""

_HOW: Final = "Make one with: openssl rand -hex 32"


def parse_signing_keys(data: bytes, where: str) -> tuple[bytes, ...]:
    """Return the keys of these lines, the one that signs first. Raises `ConfigurationError`.

    `where` names the source of the lines for messages, which never show a key.
    """
    keys: list[bytes] = []
    for number, line in enumerate(map(bytes.strip, data.split(b"\n")), 1):
        if not line or line.startswith(b"#"):
            continue
        if len(line) < SHORTEST_KEY:
            raise ConfigurationError(
                f"Line {number} of {where} has {len(line)} bytes: a key of client secrets must have at least "
                f"{SHORTEST_KEY}. {_HOW}"
            )
        if line in keys:
            raise ConfigurationError(f"Line {number} of {where} repeats a key. Remove one of them.")
        keys.append(line)
    if not keys:
        raise ConfigurationError(f"There is no key of client secrets in {where}. {_HOW}")
    if len(keys) > MOST_KEYS:
        raise ConfigurationError(f"There are {len(keys)} keys in {where}; at most {MOST_KEYS} are taken.")
    return tuple(keys)


def read_signing_keys(path: Path) -> tuple[bytes, ...]:
    """Return the keys in a file. Raises `ConfigurationError`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"Cannot read the keys in {path}: {error.strerror}.") from None
    return parse_signing_keys(data, str(path))
