"""The queue that adapters and workers share, from an option or the environment."""

import argparse
import os
from pathlib import Path
from typing import Final

from antiphon_command.arguments.shared_key import Options

DISPATCHER: Final = "ANTIPHON_DISPATCHER"

DISPATCHER_FILES: Final = (
    "dispatcher_ca",
    "dispatcher_cert",
    "dispatcher_cert_key",
    "dispatcher_password_file",
)
"""Options of the connection to that Redis, apart from its address; they need an address."""


def add_dispatcher_options(options: Options) -> None:
    """Add the options of commands that share the queue.

    An address with a password belongs into the variable: other users of the machine can read the command
    line.
    """
    in_environment = os.environ.get(DISPATCHER) or None
    options.add_argument(
        "--dispatcher",
        metavar="URL",
        default=argparse.SUPPRESS if in_environment is None else in_environment,
        help=f"Redis of the queue that adapters share, redis://host:6379 (or {DISPATCHER})",
    )
    options.add_argument(
        "--dispatcher-ca", type=Path, metavar="FILE", help="PEM: the authority of that Redis' certificate"
    )
    options.add_argument(
        "--dispatcher-cert", type=Path, metavar="FILE", help="PEM: shown to that Redis if it wants one"
    )
    options.add_argument(
        "--dispatcher-cert-key", type=Path, metavar="FILE", help="PEM: the key of that certificate"
    )
    options.add_argument(
        "--dispatcher-password-file",
        type=Path,
        metavar="FILE",
        help="password of the user in the URL, where the URL has none",
    )
