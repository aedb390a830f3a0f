"""The client of the video decoding process: it starts, watches, reads and ends the process.

The output of the process is as untrusted as the file: sizes are checked, and nothing is unpickled or run.
"""

import json
import logging
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from antiphon.contract import Reason
from inference_service import child
from inference_service.errors import UnitRefused
from inference_service.video.messages import Header, Order
from inference_service.video.plan import Layout, PlannedFrame, Size, cuts, moments
from inference_service.video.sandbox import MEMORY_BYTES

logger = logging.getLogger(__name__)

CPU_S_A_MINUTE: Final = 10.0
"""Processor seconds allowed for each begun minute of video, including the start of the process."""
STALL_S: Final = 10.0
"""Seconds without use of processor time after which the process counts as hanging."""
WAIT: Final = 4.0
"""Limit of wall-clock time as a multiple of the processor time limit."""
_LOOK_S: Final = 0.1
_PART_BYTES: Final = 1 << 18
_MOST_HEADER: Final = 1 << 9
_MOST_REFUSAL: Final = 1 << 8

Pixels = NDArray[np.uint8]
Watch = Callable[[], None]
"""Called about ten times a second; raises to abort."""


class VideoReader:
    """The decoding of one video: a context manager that ends the process."""

    def __init__(self, data: bytes, order: Order, *, field: str, watch: Watch) -> None:
        """Start the process and wait for the header of the video.

        `field` is the path of `data` in its request. Raises `UnitRefused` (VIDEO_INVALID), as does reading.
        """
        self._field = field
        self._watch = watch
        self._begun = self._moved = time.monotonic()
        self._cpu_s = 0.0
        self._most_cpu_s = CPU_S_A_MINUTE
        self._process = _started(data, order)
        try:
            header = self._header(order)
            self._layout = Layout((header.width, header.height), order.most_pixels)
            self.seconds = header.frames / header.rate
            self._most_cpu_s = CPU_S_A_MINUTE * (1 + self.seconds // 60)
            self.moments = moments(header.frames, header.rate, order.stack_frames)
            self.sound = np.frombuffer(self._message(b"S", 4 * header.samples), "<f4")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "VideoReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def sizes(self) -> list[Size]:
        """Sizes of all pictures, in order."""
        return self._layout.pictures(self.moments)

    @property
    def cuts(self) -> list[tuple[int, int]]:
        """First and last sample (exclusive) of the sound of each moment."""
        return cuts(self.moments, self.seconds, len(self.sound))

    def pictures(self) -> Iterator[tuple[PlannedFrame, list[Pixels]]]:
        """Yield each moment with its pictures, RGB [height, width, 3]: the frame, and perhaps its stack."""
        for moment in self.moments:
            yield moment, [self._picture(size) for size in self._layout.of(moment)]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _picture(self, size: Size) -> Pixels:
        width, height = size
        return np.frombuffer(self._message(b"P", 3 * width * height), np.uint8).reshape(height, width, 3)

    def _header(self, order: Order) -> Header:
        try:
            header = Header(**json.loads(self._message(b"H", None)))
            header.check(order)
        except (TypeError, ValueError) as error:
            raise self._broken(f"it sent a bad header: {error}") from None
        return header

    def _message(self, letter: bytes, size: int | None) -> bytes:
        """Return the body of the next message: `size` bytes, or at most `_MOST_HEADER` if `size` is None."""
        head = self._read(5)
        length = int.from_bytes(head[1:], "big")
        if head[:1] == b"R" and length <= _MOST_REFUSAL:
            problem = self._read(length).decode("ascii", "replace")
            raise self._refused(problem) if problem.isprintable() else self._broken("it sent a bad refusal")
        if head[:1] != letter or (length > _MOST_HEADER if size is None else length != size):
            raise self._broken("it sent another message than expected")
        return self._read(length)

    def _read(self, size: int) -> bytes:
        stream = self._process.stdout
        assert stream is not None
        found = bytearray()
        ready = select.poll()
        ready.register(stream, select.POLLIN)
        while len(found) < size:
            self._watch()
            self._check_use()
            if not ready.poll(_LOOK_S * 1000):
                continue
            part = os.read(stream.fileno(), min(_PART_BYTES, size - len(found)))
            if not part:
                raise self._broken(f"it ended with exit code {self._process.wait()}")
            found += part
        return bytes(found)

    def _check_use(self) -> None:
        """Raise unless the process makes progress, within its time and memory."""
        now, used = time.monotonic(), cpu_seconds(self._process.pid)
        if used > self._cpu_s:
            self._cpu_s, self._moved = used, now
        if resident_bytes(self._process.pid) > MEMORY_BYTES:
            raise self._refused("needs more than 1 GiB of memory")
        if used > self._most_cpu_s:
            raise self._refused(f"takes more than {CPU_S_A_MINUTE:g} s of processor time a minute to decode")
        if now - self._moved > STALL_S or now - self._begun > WAIT * self._most_cpu_s:
            raise self._refused("could not be decoded in time")

    def _broken(self, problem: str) -> UnitRefused:
        logger.warning("video decoder failed: %s", problem)
        return self._refused("could not be decoded")

    def _refused(self, problem: str) -> UnitRefused:
        return UnitRefused(Reason.VIDEO_INVALID, f"{self._field} {problem}.", self._field)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process so far; 0 where the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 where the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_bytes().split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def _started(data: bytes, order: Order) -> subprocess.Popen[bytes]:
    """Start the process with the file in memory as its input, and without the worker's environment."""
    file = os.memfd_create("video")
    try:
        with os.fdopen(os.dup(file), "wb") as video:
            video.write(data)
        os.lseek(file, 0, os.SEEK_SET)
        return subprocess.Popen(
            child.command(f"{__package__}.decoder", json.dumps(asdict(order))),
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**child.environment(), "OPENBLAS_NUM_THREADS": "1"},
            bufsize=0,
        )
    finally:
        os.close(file)
