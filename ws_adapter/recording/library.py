"""The recordings for the HTTP API: lists, files and removal. It affects no session."""

import asyncio
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from ws_adapter.recording.folder import META, STREAM, Meta
from ws_adapter.recording.recorder import Recorder
from ws_adapter.recording.retention import NAME

LARGEST_PART: Final = 4 * 2**20
"""The most bytes of a file in one read."""

_META_BYTES: Final = 65_536
_FILE: Final = re.compile(r"(?:up|down)\.wav|(?:up|down)/[0-9]{1,12}-[0-9]{1,6}\.[a-z0-9]{1,5}")

Json = dict[str, Any]
Sees = Callable[[str], bool]
"""A function that returns whether the reader may see the recordings of a caller (`Client.caller`)."""


class NoRecording(Exception):
    """There is no such recording or file, or the reader may not see it."""


class StillRunning(Exception):
    """The session of a recording is still running."""


@dataclass(frozen=True)
class Part:
    """A part of a file of `total` bytes, from the offset `start`."""

    data: bytes
    start: int
    total: int


class Library:
    """The recordings in a folder. Threads do the disk reads."""

    def __init__(self, root: Path, recorder: Recorder) -> None:
        self._root = root.absolute()
        self._recorder = recorder

    async def page(self, sees: Sees, limit: int, offset: int) -> tuple[int, list[Json]]:
        """Return the number of visible recordings, and the summaries of one page of them, newest first."""
        kept = await self._recorder.ask(lambda: self._recorder.names())
        own = [(name, size) for name, caller, size in reversed(kept) if sees(caller)]
        chosen = own[offset : offset + limit]
        return len(own), await asyncio.to_thread(lambda: list(self._summaries(chosen)))

    async def summary(self, name: str, sees: Sees) -> Json:
        """Return the summary of a recording, with its files. Raises `NoRecording`."""
        return await asyncio.to_thread(self._whole, name, sees)

    async def stream(self, name: str, sees: Sees, start: int, size: int) -> Part:
        """Return at most `size` bytes of the events of a recording. Raises `NoRecording`."""
        return await asyncio.to_thread(self._part, name, STREAM, sees, start, size)

    async def file(self, name: str, path: str, sees: Sees, start: int, size: int) -> Part:
        """Return at most `size` bytes of a file of a recording. Raises `NoRecording`."""
        if path not in (META, STREAM) and not _FILE.fullmatch(path):
            raise NoRecording
        return await asyncio.to_thread(self._part, name, path, sees, start, size)

    async def remove(self, name: str, sees: Sees) -> None:
        """Remove a finished recording. Raises `NoRecording`, or `StillRunning` while its session runs."""
        await asyncio.to_thread(self._meta, name, sees)
        if await self._recorder.ask(lambda: self._recorder.is_running(name)):
            raise StillRunning
        if not await self._recorder.ask(lambda: self._recorder.remove(name)):
            raise NoRecording

    def _summaries(self, chosen: list[tuple[str, int]]) -> Iterator[Json]:
        for name, size in chosen:
            try:
                meta = self._meta(name, lambda caller: True)
            except NoRecording:
                continue
            yield {"recording_id": name, "bytes": size, **msgspec.to_builtins(meta)}

    def _whole(self, name: str, sees: Sees) -> Json:
        meta = self._meta(name, sees)
        folder = self._root / name
        files = []
        for path in sorted(folder.rglob("*")):
            state = path.lstat()
            if stat.S_ISREG(state.st_mode):
                files.append({"path": path.relative_to(folder).as_posix(), "bytes": state.st_size})
        return {"recording_id": name, **msgspec.to_builtins(meta), "files": files}

    def _meta(self, name: str, sees: Sees) -> Meta:
        if not NAME.fullmatch(name) or (self._root / name).is_symlink():
            raise NoRecording
        try:
            meta = msgspec.json.decode(_read(self._root / name / META, 0, _META_BYTES).data, type=Meta)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            raise NoRecording from None
        if not sees(meta.client.caller):
            raise NoRecording
        return meta

    def _part(self, name: str, path: str, sees: Sees, start: int, size: int) -> Part:
        self._meta(name, sees)
        try:
            return _read(self._root / name / path, start, min(size, LARGEST_PART))
        except OSError:
            raise NoRecording from None


def _read(path: Path, start: int, size: int) -> Part:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        total = os.fstat(file).st_size
        return Part(os.pread(file, size, start) if start < total else b"", start, total)
    finally:
        os.close(file)
