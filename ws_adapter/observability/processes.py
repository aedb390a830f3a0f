"""The report of `antiphon serve` about the processes that it supervises, this adapter among them."""

import logging
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

logger = logging.getLogger(__name__)

MOST_BYTES: Final = 2**20


class Process(Struct, frozen=True):
    """One place among them, whoever fills it."""

    name: str
    state: str
    """`ready` or `starting`."""
    pid: int | None
    """None between two of them."""
    restarts: int
    """How often it had to be started again."""
    last_end: str
    """Why, the last time; empty if it never had to."""
    ended_at: float | None
    """When that was, Unix seconds."""


_decoder: Final = msgspec.json.Decoder(list[Process])


def read_processes(file: Path) -> list[Process]:
    """Those in the file, which may be another every time; none where it is missing or says nothing."""
    try:
        with file.open("rb") as told:
            return _decoder.decode(told.read(MOST_BYTES))
    except FileNotFoundError:
        return []  # they are starting
    except (OSError, msgspec.DecodeError) as error:
        logger.warning("%s does not tell of processes: %s", file, error)
        return []
