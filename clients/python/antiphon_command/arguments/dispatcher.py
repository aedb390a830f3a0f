"""Options for the shared queue of adapters and workers."""

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
"""The options of the connection to Redis, which only apply with its address."""


def add_dispatcher_options(options: Options) -> None:
    """Add the options of commands that share the queue.

    An address with a password belongs in the variable, since other users of the machine can read the command
    line.
    """
    in_environment = os.environ.get(DISPATCHER) or None
    options.add_argument(
        "--dispatcher",
        metavar="URL",
        default=argparse.SUPPRESS if in_environment is None else in_environment,
        help=f"Redis of the shared queue, such as redis://host:6379 (or {DISPATCHER})",
    )
    options.add_argument(
        "--dispatcher-ca", type=Path, metavar="FILE", help="PEM: authority of the certificate of Redis"
    )
    options.add_argument(
        "--dispatcher-cert", type=Path, metavar="FILE", help="PEM: client certificate, if Redis requires one"
    )
    options.add_argument(
        "--dispatcher-cert-key", type=Path, metavar="FILE", help="PEM: key of --dispatcher-cert"
    )
    options.add_argument(
        "--dispatcher-password-file",
        type=Path,
        metavar="FILE",
        help="password of the user in the URL, if the URL has none",
    )
