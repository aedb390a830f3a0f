"""The recogniser's process, seen from the worker.

pocketsphinx holds the GIL while it decodes, so it runs in a process of its own. If it fails or takes too
long, the model hears that utterance with its encoder only.
"""

import json
import logging
import os
import select
import subprocess
import threading
import time
import weakref
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from inference_service import child
from inference_service.recogniser.decoder import Recognised

logger = logging.getLogger(__name__)

PACKAGE: Final = "pocketsphinx"
START_S: Final = 30.0
"""Limit in seconds until the process is ready."""
READY_S: Final = 2.0
"""Limit in seconds of an utterance's wait for a starting process; after that only the encoder hears it."""
ANSWER_S: Final = 2.0
"""Limit in seconds of the wait for an answer; a later one is discarded."""
HUNG_S: Final = 10.0
"""Age in seconds of an unanswered request at which the process is killed."""
REST_S: Final = 10.0
"""Seconds without a recogniser after its process failed."""
_MOST_LINE: Final = 1 << 12


def is_installed() -> bool:
    """Return whether the recogniser can run here."""
    return find_spec(PACKAGE) is not None


class _LateError(TimeoutError):
    """A line has not come yet."""


class RecogniserProcess:
    """One process for all sessions of a worker, started by the first one. Threads may share it."""

    def __init__(self, grammar: Path) -> None:
        """Keep the path of the grammar, a JSGF file; start no process yet."""
        self._grammar = grammar
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., RecogniserProcess] | None = None
        self._is_ready = self._owes = False
        """Whether the process has started, and whether a late answer is still due."""
        self._started_at = self._asked_at = self._rests_until = 0.0

    def start(self) -> None:
        """Start the process unless it runs. It never blocks: the event loop may call it."""
        if self._process is None and self._lock.acquire(blocking=False):
            try:
                self._started()
            finally:
                self._lock.release()

    def recognise(self, sound: bytes) -> Recognised | None:
        """Return the likeliest sentence in 16 kHz PCM16; None if there is none, or not in time."""
        with self._lock:
            process = self._started()
            if process is None:
                return None
            try:
                return self._ask(process, sound)
            except (OSError, ValueError, TypeError) as error:
                logger.warning("recogniser failed, only the encoder listens for %g s: %s", REST_S, error)
                self._rests_until = time.monotonic() + REST_S
                self._stop()
                return None

    def close(self) -> None:
        """End the process; the next use starts it again."""
        with self._lock:
            self._stop()

    def _started(self) -> subprocess.Popen[bytes] | None:
        if self._process is None and time.monotonic() >= self._rests_until:
            self._process = subprocess.Popen(
                child.command(f"{__package__}.program", str(self._grammar)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=child.environment(),
                bufsize=0,
            )
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
            self._end = weakref.finalize(self, _ended, self._process)
            self._is_ready = self._owes = False
            self._started_at = time.monotonic()
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], sound: bytes) -> Recognised | None:
        if not self._is_ready:
            try:
                self._line(process, READY_S)
            except _LateError:
                if time.monotonic() - self._started_at > START_S:
                    raise
                return None
            self._is_ready = True
        end = time.monotonic() + ANSWER_S
        try:
            if self._owes:
                self._line(process, ANSWER_S)
            self._owes, self._asked_at = True, time.monotonic()
            self._send(process, len(sound).to_bytes(4, "big") + sound)
            heard = json.loads(self._line(process, end - time.monotonic()))
        except _LateError as late:
            if time.monotonic() - self._asked_at > HUNG_S:
                raise
            logger.warning("recogniser late, only the encoder hears this utterance: %s", late)
            return None
        self._owes = False
        return Recognised(**heard | {"words": tuple(heard["words"])}) if heard is not None else None

    @staticmethod
    def _send(process: subprocess.Popen[bytes], data: bytes) -> None:
        """Write all data. Raises `OSError` if the process does not read it in time."""
        assert process.stdin is not None
        rest, end = memoryview(data), time.monotonic() + ANSWER_S
        ready = select.poll()
        ready.register(process.stdin, select.POLLOUT)
        while rest:
            if not ready.poll(max(0.0, end - time.monotonic()) * 1000):
                raise TimeoutError(f"its input was not read within {ANSWER_S:g} s")
            rest = rest[os.write(process.stdin.fileno(), rest) :]

    @staticmethod
    def _line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
        """Return the next line of the process.

        Raises `_LateError` if there is none in time, and `OSError` at the end of the output.
        """
        assert process.stdout is not None
        line, end = b"", time.monotonic() + seconds
        ready = select.poll()
        ready.register(process.stdout, select.POLLIN)
        while not line.endswith(b"\n"):
            if not ready.poll(max(0.0, end - time.monotonic()) * 1000):
                raise _LateError(f"no answer within {seconds:g} s")
            part = os.read(process.stdout.fileno(), _MOST_LINE)
            if not part or len(line) > _MOST_LINE:
                raise OSError(f"its process ended with exit code {process.poll()}")
            line += part
        return line

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._process = self._end = None


def _ended(process: subprocess.Popen[bytes]) -> None:
    """End a process, and close its pipes."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()
