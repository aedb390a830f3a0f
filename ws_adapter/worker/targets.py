"""Addresses of workers, and a file that lists them."""

from pathlib import Path
from typing import Final

from ws_adapter.process.errors import ConfigurationError
from ws_adapter.worker.transport.target import Target

_COMMENT: Final = "#"


def check_target(text: str) -> None:
    """Raise `ConfigurationError` unless `text` is `host:port`, `[v6]:port` or `unix:path`."""
    try:
        Target.parse(text)
    except ValueError:
        text = f"Cannot reach a worker at {text!r}: give host:port or unix:path."
        raise ConfigurationError(text) from None


def read_targets(path: Path) -> tuple[str, ...]:
    """Return the addresses in a file, one on each line; `#` begins a comment.

    Raises `ConfigurationError` if the file is unreadable or empty, or an address is invalid.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Cannot read the workers of {path}: {error}.") from None
    lines = (line.partition(_COMMENT)[0].strip() for line in text.splitlines())
    targets = tuple(line for line in lines if line)
    if not targets:
        raise ConfigurationError(f"{path} names no worker. Write host:port or unix:path on a line.")
    for target in targets:
        check_target(target)
    return targets
