"""The report of `antiphon serve` about the processes that it supervises, including this adapter."""

import logging
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

logger = logging.getLogger(__name__)

MOST_BYTES: Final = 2**20


class Process(Struct, frozen=True):
    """One supervised process, over all its restarts."""

    name: str
    state: str
    """`ready` or `starting`."""
    pid: int | None
    """The process id; None while the process is not running."""
    restarts: int
    """How often the process was restarted."""
    last_end: str
    """The reason of the last restart; empty if there was none."""
    ended_at: float | None
    """The time of the last restart, in Unix seconds."""


_decoder: Final = msgspec.json.Decoder(list[Process])


def read_processes(file: Path) -> list[Process]:
    """Read the processes from the file; none if it is missing or cannot be read."""
    try:
        with file.open("rb") as report:
            return _decoder.decode(report.read(MOST_BYTES))
    except FileNotFoundError:
        return []  # the supervisor has not written it yet
    except (OSError, msgspec.DecodeError) as error:
        logger.warning("the report of processes %s cannot be read: %s", file, error)
        return []
