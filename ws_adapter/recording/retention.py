"""Which finished recordings stay: bounded by age and by size on disk."""

import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ws_adapter.recording.folder import META

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,128}-[0-9a-f]{8}")
"""How recordings are called. Nothing else in the folder is ever touched."""

_BLOCK_BYTES: Final = 512


@dataclass(frozen=True)
class Kept:
    """A finished recording; `ended` is the Unix time of its last write."""

    ended: float
    name: str
    size: int


class Shelf:
    """The finished recordings in the folder `root`, oldest first. `size` is about what they use on disk.

    Only this object removes recordings; the folder is read once, by `scan`. 0 for `max_age_s` or `max_bytes`
    is no bound. What cannot be removed is told to `on_failure` and forgotten.
    """

    def __init__(
        self, root: Path, max_age_s: float, max_bytes: int, on_failure: Callable[[OSError], None]
    ) -> None:
        self._root = root
        self._max_age_s = max_age_s
        self._max_bytes = max_bytes
        self._on_failure = on_failure
        self._kept: deque[Kept] = deque()
        self.size = 0

    def scan(self) -> None:
        """Takes in what earlier runs left, also what a crash interrupted."""
        try:
            found = list(_recordings(self._root))
        except OSError as error:
            self._on_failure(error)
            return
        self._kept = deque(sorted(found, key=lambda kept: kept.ended))
        self.size = sum(kept.size for kept in found)

    def put(self, kept: Kept) -> None:
        """Adds the recording that ended last."""
        self._kept.append(kept)
        self.size += kept.size

    def tidy(self, now: float, growing: int) -> bool:
        """Removes what is too old and, oldest first, what is too much beside `growing` bytes of unfinished
        recordings.

        `now` is Unix time. Returns whether everything is within the bound of size.
        """
        while self._kept and (self._is_too_old(self._kept[0], now) or self._is_too_much(growing)):
            kept = self._kept.popleft()
            self.size -= kept.size
            try:
                shutil.rmtree(self._root / kept.name)
            except FileNotFoundError:
                pass
            except OSError as error:
                self._on_failure(error)
        return not self._is_too_much(growing)

    def _is_too_old(self, kept: Kept, now: float) -> bool:
        return bool(self._max_age_s) and now - kept.ended > self._max_age_s

    def _is_too_much(self, growing: int) -> bool:
        return bool(self._max_bytes) and self.size + growing > self._max_bytes


def _recordings(root: Path) -> Iterator[Kept]:
    with os.scandir(root) as entries:
        for entry in entries:
            if NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    yield _kept(root / entry.name)


def _kept(folder: Path) -> Kept:
    """Raises OSError if `folder` is no recording, or is being removed."""
    (folder / META).lstat()
    states = [path.lstat() for path in (folder, *folder.rglob("*"))]
    used = sum(state.st_blocks for state in states) * _BLOCK_BYTES
    return Kept(max(state.st_mtime for state in states), folder.name, used)
