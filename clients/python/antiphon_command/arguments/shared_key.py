"""Options for keys that several processes share, each from a file or the environment.

A key is never an argument, since other users of the machine can read the command line.
"""

import argparse
import os
from pathlib import Path
from typing import Final, TypeAlias

WORKER_KEY: Final = "ANTIPHON_WORKER_KEY"
CLIENT_SECRET_KEY: Final = "ANTIPHON_CLIENT_SECRET_KEY"
ADMIN_KEY: Final = "ANTIPHON_ADMIN_KEY"

Options: TypeAlias = "argparse._ActionsContainer"
"""The options of a command, or a group of them."""


def add_worker_key_option(options: Options) -> None:
    """Add the option for the key of leases, for commands that sign or check them."""
    _add(options, "worker_key", WORKER_KEY, "key that signs leases")


def add_client_secret_key_option(options: Options) -> None:
    """Add the option for the keys of client secrets.

    The value stays the name of the file, since it is read again on SIGHUP.
    """
    options.add_argument(
        "--client-secret-key-file",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help=f"keys of client secrets, for adapters that share them (or {CLIENT_SECRET_KEY})",
    )
    in_environment = os.environ.get(CLIENT_SECRET_KEY)
    if in_environment is not None:
        options.set_defaults(client_secret_key=in_environment.encode().strip())


def add_admin_key_option(options: Options) -> None:
    """Add the option for the key of a worker's administration port."""
    _add(options, "admin_key", ADMIN_KEY, "key of the administration pages")


def _add(options: Options, name: str, variable: str, help: str) -> None:
    """Add an option; without it the variable counts."""
    in_environment = os.environ.get(variable)
    options.add_argument(
        f"--{name.replace('_', '-')}-file",
        dest=name,
        type=_read,
        default=argparse.SUPPRESS if in_environment is None else in_environment.encode().strip(),
        metavar="FILE",
        help=f"{help} (or {variable})",
    )


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes().strip()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read {path}: {error.strerror}") from None
