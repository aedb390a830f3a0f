"""Keys that several processes share, each from a file or the environment.

Never from the command line itself, which every user of the machine can read.
"""

import argparse
import os
from pathlib import Path
from typing import Final, TypeAlias

WORKER_KEY: Final = "ANTIPHON_WORKER_KEY"
CLIENT_SECRET_KEY: Final = "ANTIPHON_CLIENT_SECRET_KEY"
ADMIN_KEY: Final = "ANTIPHON_ADMIN_KEY"

Options: TypeAlias = "argparse._ActionsContainer"
"""Those of a command, or a group of them."""


def add_worker_key_option(options: Options) -> None:
    """That of leases, for commands that sign or check them."""
    _add(options, "worker_key", WORKER_KEY, "key of leases")


def add_client_secret_key_option(options: Options) -> None:
    """That of client secrets, for commands that sign and check them."""
    _add(
        options, "client_secret_key", CLIENT_SECRET_KEY, "key of client secrets, for adapters that share them"
    )


def add_admin_key_option(options: Options) -> None:
    """Add the option for the key of a worker's administration port."""
    _add(options, "admin_key", ADMIN_KEY, "key that the pages ask for")


def _add(options: Options, name: str, variable: str, help: str) -> None:
    """The variable counts where the option is not given."""
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
