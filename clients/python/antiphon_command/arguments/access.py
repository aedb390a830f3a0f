"""The server that a command talks to, and its key."""

import argparse
import os
from pathlib import Path
from typing import Any, Final

DEFAULT_URL: Final = "ws://localhost:8006"
KEY_VARIABLE: Final = "ANTIPHON_API_KEY"
"""The environment variable of the API key.

Other users of the machine can read the arguments of a process, but not its environment.
"""


def add_access_options(command: argparse.ArgumentParser) -> None:
    """Add the options of commands that connect to a server.

    They set `url` and `api_key`, which is None without a key.
    """
    add = command.add_argument
    add("--url", default=DEFAULT_URL, help=f"the server (default {DEFAULT_URL})")
    add(
        "--key-file",
        dest="api_key",
        metavar="FILE",
        action=_KeyFile,
        default=os.environ.get(KEY_VARIABLE),
        help=f"key for the server (or {KEY_VARIABLE})",
    )


class _KeyFile(argparse.Action):
    """An action that stores the content of the named file; a `type` would also read the default as a file."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, path: Any, *_: object
    ) -> None:
        try:
            key = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise argparse.ArgumentError(self, f"cannot read {path}: {why}") from None
        if not key:
            raise argparse.ArgumentError(self, f"{path} is empty: it should hold the key and nothing else")
        setattr(namespace, self.dest, key)
