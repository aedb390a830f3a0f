"""Retention of finished recordings: bounded by age and by size on disk."""

import os
import re
import shutil
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ws_adapter.recording.folder import META, Folder, Meta

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,128}-[0-9a-f]{8}")
"""The form of a recording's name. Other entries of the folder are never changed."""

_BLOCK_BYTES: Final = 512
_META_BYTES: Final = 65_536
"""The most bytes of a summary."""


@dataclass(frozen=True)
class StoredRecording:
    """A finished recording of `caller`; `ended` is the Unix time of its last write."""

    ended: float
    name: str
    size: int
    caller: str


class RecordingStore:
    """The finished recordings in the folder `root`. `size` is their approximate disk space in bytes.

    Only this object removes finished recordings; `scan` reads the folder once. 0 for `max_age_s` or
    `max_bytes` is no bound. If a recording cannot be removed, `on_failure` gets the error, and the index
    drops it.
    """

    def __init__(
        self, root: Path, max_age_s: float, max_bytes: int, on_failure: Callable[[OSError], None]
    ) -> None:
        self._root = root
        self._max_age_s = max_age_s
        self._max_bytes = max_bytes
        self._on_failure = on_failure
        self._kept: OrderedDict[str, StoredRecording] = OrderedDict()
        """The recordings by name, the oldest first."""
        self._of: dict[str, deque[StoredRecording]] = {}
        """The recordings of each caller, the oldest first."""
        self._sizes: Counter[str] = Counter()
        self.size = 0

    def scan(self) -> None:
        """Read the recordings of earlier runs, including those that a crash interrupted."""
        try:
            found = list(_recordings(self._root))
        except OSError as error:
            self._on_failure(error)
            return
        for kept in sorted(found, key=lambda kept: kept.ended):
            self.put(kept)

    def put(self, kept: StoredRecording) -> None:
        """Add a recording that ended after all others."""
        self._kept[kept.name] = kept
        self._of.setdefault(kept.caller, deque()).append(kept)
        self._sizes[kept.caller] += kept.size
        self.size += kept.size

    def kept(self) -> list[StoredRecording]:
        """Return all recordings, the oldest first."""
        return list(self._kept.values())

    def remove(self, name: str) -> bool:
        """Remove a recording; return False if there is none."""
        kept = self._kept.get(name)
        if kept is None:
            return False
        self._of[kept.caller].remove(kept)
        self._remove(kept)
        return True

    def tidy(self, now: float, growing: int, running: Iterable[Folder]) -> str | None:
        """Remove expired recordings, then those beyond the size bound: always the oldest of the caller with
        the most bytes.

        `now` is Unix time in seconds; `running` are the unfinished recordings, of `growing` bytes in all,
        which count too. If the size is still too large and the caller with the most bytes has no finished
        recording, return that caller; else None.
        """
        while self._max_age_s and self._kept:
            oldest = next(iter(self._kept.values()))
            if now - oldest.ended <= self._max_age_s:
                break
            self._remove_oldest(oldest.caller)
        while self._max_bytes and self.size + growing > self._max_bytes:
            sizes = self._sizes.copy()
            for folder in running:
                sizes[folder.caller] += folder.size
            heaviest, _ = sizes.most_common(1)[0]
            if heaviest not in self._of:
                return heaviest
            self._remove_oldest(heaviest)
        return None

    def _remove_oldest(self, caller: str) -> None:
        self._remove(self._of[caller].popleft())

    def _remove(self, kept: StoredRecording) -> None:
        """Remove a recording from the index and from disk."""
        caller = kept.caller
        del self._kept[kept.name]
        self.size -= kept.size
        self._sizes[caller] -= kept.size
        if not self._of[caller]:
            del self._of[caller], self._sizes[caller]
        try:
            shutil.rmtree(self._root / kept.name)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._on_failure(error)


def _recordings(root: Path) -> Iterator[StoredRecording]:
    with os.scandir(root) as entries:
        for entry in entries:
            if NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    yield _kept(root / entry.name)


def _kept(folder: Path) -> StoredRecording:
    """Return the recording in a folder. Raises OSError if there is none, or if it is being removed."""
    (folder / META).lstat()
    states = [path.lstat() for path in (folder, *folder.rglob("*"))]
    used = sum(state.st_blocks for state in states) * _BLOCK_BYTES
    return StoredRecording(max(state.st_mtime for state in states), folder.name, used, _caller(folder / META))


def _caller(path: Path) -> str:
    """Return the caller of a recording; empty if its summary does not name one."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return msgspec.json.decode(os.read(file, _META_BYTES), type=Meta).client.caller
        finally:
            os.close(file)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return ""
