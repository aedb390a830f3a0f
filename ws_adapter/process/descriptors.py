"""Open files of this process: each socket is one, and without a free one no client can connect."""

import resource
from typing import Final

from ws_adapter.process.errors import ConfigurationError

OTHERS: Final = 256
"""For sockets of clients that have a slot, of handshakes, pages and workers, and for files."""


def reserve(waiting: int) -> None:
    """Take as many as the system grants. Raises `ConfigurationError` if `waiting` clients are too many."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = waiting + OTHERS
    if most != resource.RLIM_INFINITY and most < needed:
        raise ConfigurationError(
            f"{waiting} waiting clients and all else need {needed} open files; this process may have {most}. "
            f"Raise the limit with ulimit -Hn {needed}, or pass a smaller --queue-capacity."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
