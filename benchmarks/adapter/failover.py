"""Failover time of the sessions of a killed worker, until another worker answers them.

Workers, adapter and clients are those of a deployment, with the model `antiphon-mini`; they share all cores.
Every client plays recorded questions in real time. The time of a session is from the SIGKILL to the first
answer after `session.moved`.
"""

import asyncio
import os
import signal
import statistics
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Final

import numpy as np

import antiphon
from benchmarks.load.processes import Process, running
from benchmarks.report import Goal, Report

RECORDINGS: Final = Path(__file__).parents[2] / "clients/recordings"

SESSIONS: Final = 16
TALK_S: Final = 12.0
"""The seconds of conversation before the worker is killed: the length of the replayed journal."""

GOAL_S: Final = 3.0
"""The goal for the 99th percentile in seconds."""

_PATIENCE_S: Final = 60.0
_QUESTIONS: Final = ("joke", "name", "counting", "light")


class Caller:
    """A client with one session in real time, and the monotonic times of its move and of its next answer."""

    def __init__(self, number: int) -> None:
        self.moved_at = 0.0
        self.back_at = 0.0
        """The time of the first answer after the move."""
        self.opened = asyncio.Event()
        self._number = number

    async def talk(self, url: str) -> None:
        """Hold a conversation until cancelled."""
        question = antiphon.read_wav(str(RECORDINGS / f"{_QUESTIONS[self._number % len(_QUESTIONS)]}.wav"))
        silent = np.zeros(8 * antiphon.INPUT_RATE_HZ, np.float32)
        sound = np.resize(np.concatenate([question, silent]), 120 * antiphon.INPUT_RATE_HZ)
        async with antiphon.connect(url) as client, client.duplex(seed=self._number) as session:
            self.opened.set()
            playing = asyncio.create_task(self._play(session, sound))
            try:
                async for event in session:
                    if isinstance(event, antiphon.Moved):
                        self.moved_at = time.monotonic()
                    elif self.moved_at and not self.back_at:
                        self.back_at = time.monotonic()
            finally:
                playing.cancel()

    async def _play(self, session: antiphon.DuplexSession, sound: np.ndarray) -> None:
        await asyncio.sleep(self._number / SESSIONS)  # spreads the sessions over a second
        begin = time.monotonic()
        for second in range(len(sound) // antiphon.INPUT_RATE_HZ):
            await asyncio.sleep(max(0.0, begin + second - time.monotonic()))
            start = second * antiphon.INPUT_RATE_HZ
            await session.send_audio(sound[start : start + antiphon.INPUT_RATE_HZ])


async def _once() -> list[tuple[float, float]]:
    """Kill one worker; return for each session the seconds until its move and until its next answer."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(_worker()) for _ in range(2))
        targets = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "workers"
        targets.write_text(f"{first.address}\n")
        command = ("antiphon_command", "adapter", "--workers-file", str(targets), "--port", "0")
        front = stack.enter_context(running(*command, "--log-level", "error", cpu=None))
        callers = [Caller(number) for number in range(SESSIONS)]
        talks: list[asyncio.Task[None]] = []
        try:
            for caller in callers:
                talks.append(asyncio.create_task(caller.talk(f"ws://{front.address}")))
                async with asyncio.timeout(_PATIENCE_S):
                    await caller.opened.wait()
            targets.write_text(f"{first.address}\n{second.address}\n")
            os.kill(front.pid, signal.SIGHUP)  # all sessions are on the first worker
            await asyncio.sleep(TALK_S)
            os.kill(first.pid, signal.SIGKILL)
            killed_at = time.monotonic()
            await asyncio.sleep(5 * GOAL_S)
        finally:
            for talk in talks:
                talk.cancel()
            await asyncio.gather(*talks, return_exceptions=True)
        lost = float("inf")
        return [((it.moved_at or lost) - killed_at, (it.back_at or lost) - killed_at) for it in callers]


def _worker() -> AbstractContextManager[Process]:
    options = ("--slots", str(SESSIONS), "--log-level", "error")
    return running("antiphon_command", "worker", "--listen", "127.0.0.1:0", *options, cpu=None)


async def measure(is_short: bool) -> Report:
    """Return the table: the failover times of five runs, or of one run if `is_short`."""
    found = [time for _ in range(1 if is_short else 5) for time in await _once()]
    moved, back = zip(*found, strict=True)
    worst = float(np.percentile(back, 99))
    rows = [
        ("until session.moved", len(moved), statistics.median(moved), float(np.percentile(moved, 99))),
        ("until the next answer", len(back), statistics.median(back), worst),
    ]
    return Report(
        "failover",
        f"Failover of a killed antiphon-mini worker, in seconds, with {TALK_S:g} s of conversation replayed",
        ("what", "sessions", "median", "p99"),
        rows,
        [Goal("seconds from SIGKILL to the next answer, p99", worst, GOAL_S)],
        where="all processes on both cores",
    )
