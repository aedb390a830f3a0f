"""Who may use the adapter: keys, of which only hashes are kept.

A file of keys has one line for each, `name:sha256` or `name:sha256:marks`, where marks are `admin`, `trusted`
or both with a comma between; empty lines and lines that begin with `#` mean nothing. `make_key` makes both
halves. A key is 256 random bits, so that nobody guesses it from its hash, however fast the hash is.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ws_adapter.process.errors import ConfigurationError

_ADMIN: Final = "admin"
_TRUSTED: Final = "trusted"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Key:
    """One key. `is_admin`: its holder may see what belongs to others. `is_trusted`: traces that it brings are
    continued, and whether they are recorded is its holder's decision."""

    name: str
    hash: str
    is_admin: bool = False
    is_trusted: bool = False

    @property
    def line(self) -> str:
        """What stands for this key in a file of keys."""
        marks = [_ADMIN] * self.is_admin + [_TRUSTED] * self.is_trusted
        return ":".join([self.name, self.hash, *([",".join(marks)] if marks else [])])


def make_key(name: str, *, is_admin: bool = False, is_trusted: bool = False) -> tuple[str, Key]:
    """A new secret, and the key that it opens. Raises `ConfigurationError` for a name that cannot be."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name[:80]!r} is no name of a key. Use 1 to 64 letters, digits, dots, hyphens and underscores."
        )
    secret = f"ak_{secrets.token_urlsafe(32)}"
    return secret, Key(name, _hash(secret), is_admin, is_trusted)


class Keys:
    """The keys of a file, as they were when it was last read."""

    def __init__(self, path: Path) -> None:
        """Reads the file. Raises `ConfigurationError` if it cannot be used."""
        self._path = path
        self._keys = _read(path)

    def reload(self) -> None:
        """Reads the file again. Raises `ConfigurationError`, and then the keys stay as they were."""
        self._keys = _read(self._path)

    def find(self, secret: str) -> Key | None:
        """The key that `secret` opens; takes equally long whichever it is."""
        offered, found = _hash(secret), None
        for key in self._keys:
            if hmac.compare_digest(key.hash, offered):
                found = key
        return found

    def find_half(self, half: bytes) -> Key | None:
        """The key whose hash begins with these bytes."""
        digits = half.hex()
        return next((key for key in self._keys if key.hash.startswith(digits)), None)

    def current(self, key: Key) -> Key | None:
        """`key` as it stands now; None if it was withdrawn."""
        return next((known for known in self._keys if known.hash == key.hash), None)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


def _read(path: Path) -> Sequence[Key]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError(f"Cannot read the keys in {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"Cannot read the keys in {path}: the file is not UTF-8 text.") from None
    keys: list[Key] = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        key = _parse(line)
        if key is None:
            # The line itself is not shown: it may be a key where its hash should be.
            raise ConfigurationError(
                f"Line {number} of {path} is no key: expected name:sha256, and perhaps :admin, :trusted or "
                ":admin,trusted. Make one with: antiphon key NAME"
            )
        if any(key.name == other.name or key.hash == other.hash for other in keys):
            raise ConfigurationError(f"Line {number} of {path} repeats a name or a hash. Remove one of them.")
        keys.append(key)
    if not keys:
        raise ConfigurationError(f"There is no key in {path}. Make one with: antiphon key NAME >> {path}")
    return keys


def _parse(line: str) -> Key | None:
    name, _, rest = line.partition(":")
    digest, marked, text = rest.partition(":")
    marks = set(text.split(",")) if marked else set()
    if not _NAME.fullmatch(name) or not _HASH.fullmatch(digest) or marks - {_ADMIN, _TRUSTED}:
        return None
    return Key(name, digest, _ADMIN in marks, _TRUSTED in marks)
