"""The key of leases, which dispatchers sign and workers check, from a file or the environment.

Never from the command line itself, which every user of the machine can read.
"""

import argparse
import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "ANTIPHON_WORKER_KEY"


def add_worker_key_option(command: argparse.ArgumentParser) -> None:
    """The option of commands that sign or check leases; the variable counts where it is not given."""
    in_environment = os.environ.get(VARIABLE)
    command.add_argument(
        "--worker-key-file",
        dest="worker_key",
        type=_read,
        default=argparse.SUPPRESS if in_environment is None else in_environment.encode().strip(),
        metavar="FILE",
        help=f"key of leases (or {VARIABLE})",
    )


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes().strip()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read {path}: {error.strerror}") from None
