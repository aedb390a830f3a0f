"""The limit of open files of this process: each socket is an open file."""

import resource
from typing import Final

from ws_adapter.process.errors import ConfigurationError

OTHERS: Final = 256
"""Descriptors besides those of waiting clients: for running sessions, handshakes, pages, workers and
files."""


def reserve(waiting: int) -> None:
    """Raise the limit of open files as far as the system allows. Raises `ConfigurationError` if it is too
    low for `waiting` clients."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = waiting + OTHERS
    if most != resource.RLIM_INFINITY and most < needed:
        raise ConfigurationError(
            f"{waiting} waiting clients and other uses need {needed} open files; this process may have "
            f"{most}. Raise the limit with ulimit -Hn {needed}, or pass a smaller --queue-capacity."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
