"""The report of `antiphon serve` about the processes that it supervises, this adapter among them."""

import logging
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

logger = logging.getLogger(__name__)

MOST_BYTES: Final = 2**20


class Process(Struct, frozen=True):
    """One supervised place, whichever process runs there."""

    name: str
    state: str
    """`ready` or `starting`."""
    pid: int | None
    """The process id; None between two processes."""
    restarts: int
    """How often the process was restarted."""
    last_end: str
    """The reason of the last restart; empty if there was none."""
    ended_at: float | None
    """The time of the last restart, in Unix seconds."""


_decoder: Final = msgspec.json.Decoder(list[Process])


def read_processes(file: Path) -> list[Process]:
    """Return the processes in the file, which is read anew each time; none if it is missing or empty."""
    try:
        with file.open("rb") as told:
            return _decoder.decode(told.read(MOST_BYTES))
    except FileNotFoundError:
        return []  # they are starting
    except (OSError, msgspec.DecodeError) as error:
        logger.warning("%s does not tell of processes: %s", file, error)
        return []
