"""Open files of this process: each socket is one, and without a free one no client can connect."""

import resource
from typing import Final

from ws_adapter.process.errors import ConfigurationError

OTHERS: Final = 256
"""Descriptors beyond the waiting clients: for sessions with a slot, handshakes, pages, workers and files."""


def reserve(waiting: int) -> None:
    """Raise the limit of open files as far as the system allows. Raises `ConfigurationError` if it is too
    low for `waiting` clients."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = waiting + OTHERS
    if most != resource.RLIM_INFINITY and most < needed:
        raise ConfigurationError(
            f"{waiting} waiting clients and all else need {needed} open files; this process may have {most}. "
            f"Raise the limit with ulimit -Hn {needed}, or pass a smaller --queue-capacity."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
