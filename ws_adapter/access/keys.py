"""The API keys of an adapter's clients; the adapter stores only their hashes.

A file of keys has one line for each key:

    name:sha256[:[admin][,trusted] [field=value] ...]

Spaces separate the marks and each field. The fields are `expires`, `modes`, `models`, `origins`,
`connections`, `opens_per_min`, `direct_slots`, `seconds_per_day`, `tokens_per_day` and `priority`; commas
separate the entries of a list. Empty lines and lines that begin with `#` are skipped. A key has 256 random
bits, so a fast hash is enough.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ws_adapter.access.rights import ALL_RIGHTS, Rights
from ws_adapter.dispatch.base import Priority
from ws_adapter.process.errors import ConfigurationError
from ws_adapter.protocol.core.config import Mode
from ws_adapter.usage.tenant import Quota, Tenant

_ADMIN: Final = "admin"
_TRUSTED: Final = "trusted"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_MODEL: Final = re.compile(r"[!-+\--~]{1,128}")
ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s,]{1,255}")
SHARED: Final = "the shared keys"
"""The source of shared keys, as error messages name it."""

_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\dZ)?")
_SHOWN_NAME: Final = re.compile(r"[a-z_]{1,32}")
_LONGEST_SHOWN: Final = 64
_HIGHEST_LIMIT: Final = 1_000_000
HIGHEST_QUOTA: Final = 10**12
"""The highest quota. As milliseconds it is still an exact integer in Redis."""

_MOST_DIGITS: Final = 15


@dataclass(frozen=True)
class KeyLimits:
    """Limits of one key; None leaves a limit to the adapter's options."""

    connections: int | None = None
    """Most connections at once."""
    opens_per_min: int | None = None
    """Most attempts to open a connection within a minute."""
    direct_slots: int | None = None
    """Most queue places and leases of direct gRPC callers at once."""
    seconds_per_day: int | None = None
    """Most slot seconds of all sessions together within a UTC day."""
    tokens_per_day: int | None = None
    """Most input and output tokens of all sessions together within a UTC day."""


@dataclass(frozen=True)
class Key:
    """One key.

    `is_admin`: its holder may see the sessions of other keys. `is_trusted`: the adapter continues the traces
    of its holder, with their sampling decision. `expires_at` is in Unix seconds.
    """

    name: str
    hash: str
    is_admin: bool = False
    is_trusted: bool = False
    expires_at: int | None = None
    rights: Rights = ALL_RIGHTS
    limits: KeyLimits = field(default=KeyLimits())
    priority: Priority = Priority.NORMAL

    @property
    def tenant(self) -> Tenant:
        """Return the tenant that the use of this key is charged to."""
        limits = self.limits
        return Tenant(self.name, self.hash, Quota(limits.seconds_per_day or 0, limits.tokens_per_day or 0))

    @property
    def line(self) -> str:
        """Return the line of this key in a file of keys."""
        marks = ",".join([_ADMIN] * self.is_admin + [_TRUSTED] * self.is_trusted)
        given = {
            "expires": _written_time(self.expires_at),
            "modes": _written_list(self.rights.modes),
            "models": _written_list(self.rights.models),
            "origins": _written_list(self.rights.origins),
            "connections": self.limits.connections,
            "opens_per_min": self.limits.opens_per_min,
            "direct_slots": self.limits.direct_slots,
            "seconds_per_day": self.limits.seconds_per_day,
            "tokens_per_day": self.limits.tokens_per_day,
            "priority": self.priority.name.lower() if self.priority is not Priority.NORMAL else None,
        }
        words = [marks] * bool(marks)
        words += [f"{name}={value}" for name, value in given.items() if value is not None]
        return ":".join([self.name, self.hash, *([" ".join(words)] if words else [])])

    def has_expired(self, unix: float) -> bool:
        """Return whether the key has expired at this Unix time."""
        return self.expires_at is not None and unix >= self.expires_at


def make_key(
    name: str, fields: Mapping[str, str] | None = None, *, is_admin: bool = False, is_trusted: bool = False
) -> tuple[str, Key]:
    """Make a new secret, and the key that it authenticates; `fields` are as in a file of keys.

    Raises `ConfigurationError` for an invalid name or field.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name[:80]!r} is no name of a key. Use 1 to 64 letters, digits, dots, hyphens and underscores."
        )
    secret = f"ak_{secrets.token_urlsafe(32)}"
    try:
        return secret, _key(name, _hash(secret), is_admin, is_trusted, _read_fields(fields or {}))
    except _Unreadable as error:
        raise ConfigurationError(f"{error}.") from None


class Keys:
    """The keys as last read, from a file or from the shared text in Redis."""

    def __init__(self, path: Path | None = None) -> None:
        """Read the file. Without one there is no key until `use`. Raises `ConfigurationError` for an invalid
        file."""
        self._path = path
        self._keys: Mapping[str, Key] = {}
        """The keys by their hashes."""
        self.reload()

    @property
    def are_unknown(self) -> bool:
        """Whether no keys have been read so far."""
        return not self._keys

    def reload(self) -> None:
        """Read the file again. Raises `ConfigurationError`, and then the keys stay as they were."""
        if self._path is not None:
            self._keys = _read(self._path)

    def use(self, text: str, source: str) -> None:
        """Use the keys of `text`, in the form of a file of keys. Raises `ConfigurationError`, which names
        `source`, and then the keys stay as they were."""
        self._keys = _parse_all(text, source)

    def find(self, secret: str) -> Key | None:
        """Return the key that `secret` authenticates, even if it has expired; takes constant time."""
        # The time of the lookup depends on this hash, which a client cannot choose.
        offered = _hash(secret)
        key = self._keys.get(offered)
        return key if key is not None and hmac.compare_digest(key.hash, offered) else None

    def find_half(self, half: bytes) -> Key | None:
        """Return the key whose hash begins with these bytes."""
        digits = half.hex()
        return next((key for key in self._keys.values() if key.hash.startswith(digits)), None)

    def current(self, key: Key) -> Key | None:
        """Return the current version of `key`; None if it was withdrawn."""
        return self._keys.get(key.hash)

    def next_expiry(self, unix: float) -> int | None:
        """Return the Unix time at which the next key expires; None if none will."""
        times = (key.expires_at for key in self._keys.values() if key.expires_at is not None)
        return min((at for at in times if at > unix), default=None)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


# ---------------------------------------------------------------------------------------------- the file


class _Unreadable(Exception):
    """A line cannot be read. The message names the fault and shows nothing that may be a secret."""


def read_key_file(path: Path) -> tuple[str, int]:
    """Return the text of a file of keys and how many keys it has. Raises `ConfigurationError`."""
    text = _text(path)
    return text, len(_parse_all(text, str(path)))


def _read(path: Path) -> Mapping[str, Key]:
    return _parse_all(_text(path), str(path))


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"Cannot read the keys in {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"Cannot read the keys in {path}: the file is not UTF-8 text.") from None


def _parse_all(text: str, source: str) -> Mapping[str, Key]:
    keys: dict[str, Key] = {}
    names: set[str] = set()
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        try:
            key = _parse(line)
        except _Unreadable as error:
            raise ConfigurationError(f"Line {number} of {source}: {error}.") from None
        if key is None:
            # The message does not show the line, which may contain a secret in place of its hash.
            raise ConfigurationError(
                f"Line {number} of {source} is no key: expected name:sha256, and perhaps :admin, :trusted or "
                ":admin,trusted and fields such as expires=2030-01-31. Make one with: antiphon key NAME"
            )
        if key.name in names or key.hash in keys:
            raise ConfigurationError(
                f"Line {number} of {source} repeats a name or a hash. Remove one of them."
            )
        names.add(key.name)
        keys[key.hash] = key
    if not keys:
        raise ConfigurationError(f"There is no key in {source}. Make one with: antiphon key NAME >> {source}")
    return keys


def _parse(line: str) -> Key | None:
    """Parse one line; None if it holds no key. Raises `_Unreadable` for a field."""
    name, _, rest = line.partition(":")
    digest, is_more, text = rest.partition(":")
    words = text.split()
    if not _NAME.fullmatch(name) or not _HASH.fullmatch(digest) or (is_more and not words):
        return None
    marks = set(words.pop(0).split(",")) if words and "=" not in words[0] else set()
    pairs = [word.partition("=") for word in words]
    if marks - {_ADMIN, _TRUSTED} or not all(equals for _, equals, _ in pairs):
        return None
    fields: dict[str, str] = {}
    for field_name, _, value in pairs:
        if field_name in fields:
            raise _Unreadable(f"{_shown_name(field_name)} appears twice")
        fields[field_name] = value
    return _key(name, digest, _ADMIN in marks, _TRUSTED in marks, _read_fields(fields))


def _key(name: str, digest: str, is_admin: bool, is_trusted: bool, read: Mapping[str, Any]) -> Key:
    return Key(
        name,
        digest,
        is_admin,
        is_trusted,
        read.get("expires"),
        Rights(read.get("modes"), read.get("models"), read.get("origins")),
        KeyLimits(
            read.get("connections"),
            read.get("opens_per_min"),
            read.get("direct_slots"),
            read.get("seconds_per_day"),
            read.get("tokens_per_day"),
        ),
        read.get("priority", Priority.NORMAL),
    )


def _read_fields(fields: Mapping[str, str]) -> dict[str, Any]:
    read = {}
    for name, value in fields.items():
        if name not in _FIELDS:
            raise _Unreadable(f"there is no field {_shown_name(name)}; expected {', '.join(_FIELDS)}")
        expected, convert = _FIELDS[name]
        try:
            read[name] = convert(value)
        except ValueError:
            message = f"{name} must be {expected}, not {value[:_LONGEST_SHOWN]!r}"
            raise _Unreadable(message) from None
    return read


def _shown_name(name: str) -> str:
    return repr(name) if _SHOWN_NAME.fullmatch(name) else "of this name"


def _time(text: str) -> int:
    if not _DATE.fullmatch(text):
        raise ValueError
    return int(datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC).timestamp())


def _listed(text: str, pattern: re.Pattern[str]) -> frozenset[str]:
    entries = text.split(",")
    if not all(pattern.fullmatch(entry) for entry in entries):
        raise ValueError
    return frozenset(entries)


def _limit(text: str, highest: int = _HIGHEST_LIMIT) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and 0 < int(text) <= highest):
        raise ValueError
    return int(text)


def _quota(text: str) -> int:
    return _limit(text, HIGHEST_QUOTA)


def _priority(text: str) -> Priority:
    if text not in _PRIORITIES:
        raise ValueError
    return _PRIORITIES[text]


def _modes(text: str) -> frozenset[Mode]:
    return frozenset(Mode(entry) for entry in text.split(","))


_PRIORITIES: Final = {priority.name.lower(): priority for priority in Priority}
_A_QUOTA: Final = f"a number from 1 to {HIGHEST_QUOTA}"
_A_LIMIT: Final = f"a number from 1 to {_HIGHEST_LIMIT}"
_FIELDS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "expires": ("a date such as 2030-01-31, or 2030-01-31T18:00:00Z", _time),
    "modes": (f"of {', '.join(Mode)}, with commas between them", _modes),
    "models": ("names of models with commas between them", lambda text: _listed(text, _MODEL)),
    "origins": (
        "origins such as https://example.org, without a path, with commas between them",
        lambda text: _listed(text.lower(), ORIGIN),
    ),
    "connections": (_A_LIMIT, _limit),
    "opens_per_min": (_A_LIMIT, _limit),
    "direct_slots": (_A_LIMIT, _limit),
    "seconds_per_day": (_A_QUOTA, _quota),
    "tokens_per_day": (_A_QUOTA, _quota),
    "priority": (f"one of {', '.join(_PRIORITIES)}", _priority),
}
"""Rule of each field, as errors state it, and its reader, which raises `ValueError`."""


def _written_time(unix: int | None) -> str | None:
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if unix is not None else None


def _written_list(names: frozenset[str] | frozenset[Mode] | None) -> str | None:
    return ",".join(sorted(names)) if names is not None else None
