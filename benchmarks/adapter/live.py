"""Cost of a Live session with 20 ms events, compared with whole units; time from barge-in to silence.

Both kinds of sessions send in real time to the same adapter, in turn. A barge-in is 0.6 s of speech, in one
session after another. The measured time is from this speech to the last audio of the answer.
"""

import asyncio
import base64
import json
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import soxr

from antiphon.audio.wav import read_wav
from benchmarks.load.client import Client, converse, text_frame
from benchmarks.load.payload import APPEND
from benchmarks.load.processes import Process, adapter, running
from benchmarks.report import Goal, Report

SESSIONS: Final = 32
PIECES: Final = 50
MOST_TIMES: Final = 2.5
MOST_MS: Final = 50.0

_PATH: Final = "/v1/live/sessions"
_RECORDING: Final = Path(__file__).parents[2] / "clients/recordings/stop.wav"
_RATE_HZ: Final = 24_000
_QUIET: Final = 0.004
_SETTLES_S: Final = 3.0
_DETECTOR: Final = "detector"
_BURST_S: Final = 0.6
_AFTER_S: Final = 0.5
"""The seconds to wait for the last audio: the next unit of speech would arrive later."""

_SILENCE: Final = b'"delta":"' + b"A" * 256


def piece(seconds: float, level: float) -> bytes:
    """Return a frame that appends `seconds` of noise with amplitudes up to `level`, in PCM16 at 24 kHz."""
    samples = np.random.default_rng(1).uniform(-level, level, round(seconds * _RATE_HZ))
    audio = base64.b64encode((samples * 32_767).astype("<i2").tobytes()).decode()
    return text_frame(json.dumps({"type": "session.input_audio.append", "audio": audio}).encode())


def _burst() -> bytes:
    """Return a frame with `_BURST_S` of recorded speech, in PCM16 at 24 kHz."""
    said = read_wav(_RECORDING).astype(np.float32)[16_000 : round((1 + _BURST_S) * 16_000)]
    samples = soxr.resample(said, 16_000, _RATE_HZ)
    audio = base64.b64encode((samples * 32_767).astype("<i2").tobytes()).decode()
    return text_frame(json.dumps({"type": "session.input_audio.append", "audio": audio}).encode())


class LiveClient:
    """One Live session. Audio that is not silent sets `speaks` and updates `sound_at`, a monotonic time."""

    def __init__(self, model: str = "bench") -> None:
        self.sound_at = 0.0
        self._model = model
        self.speaks = asyncio.Event()
        self.client: Client | None = None
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def connect(self, port: int) -> None:
        """Open the session."""
        self.client = await Client.connect(port, self._heard, _PATH)
        start = {"type": "session.start", "session": {"model": self._model}}
        self.client.send(text_frame(json.dumps(start).encode()))
        await self._started

    def _heard(self, client: Client, event: bytes) -> None:
        if b'"session.started"' in event:
            self._started.set_result(None)
        elif b"audio.delta" in event and _SILENCE not in event:
            self.sound_at = time.monotonic()
            self.speaks.set()


async def _pace(clients: list[Client], frame: bytes, period_s: float, seconds: float) -> None:
    """Send one frame of each client per period, at evenly spaced times."""
    began, step = time.monotonic(), period_s / len(clients)
    for number in range(round(seconds / step)):
        wait = began + number * step - time.monotonic()
        if wait > 0.002 or number % 64 == 0:
            await asyncio.sleep(max(0.0, wait))
        clients[number % len(clients)].send(frame)


async def _cost(
    process: Process, clients: list[Client], frame: bytes, period_s: float, seconds: float
) -> tuple[float, float]:
    """Return the CPU-microseconds per second of one session, without and of the speech detector's thread."""
    await _pace(clients, frame, period_s, _SETTLES_S)
    detector = process.thread_cpu_s(_DETECTOR)
    cpu = process.cpu_s() - detector
    await _pace(clients, frame, period_s, seconds)
    heard = process.thread_cpu_s(_DETECTOR) - detector
    spent = process.cpu_s() - cpu - detector - heard
    return spent / seconds / len(clients) * 1e6, heard / seconds / len(clients) * 1e6


async def _stops(callers: list[LiveClient], count: int) -> list[float]:
    """Return the milliseconds from each barge-in to the last audio of the answer."""
    second, burst = piece(1.0, _QUIET), _burst()
    took = []
    for number in range(count):
        caller = callers[number % len(callers)]
        assert caller.client is not None
        caller.client.send(second)
        caller.client.send(second)
        caller.speaks.clear()
        await caller.speaks.wait()
        since = time.monotonic()
        caller.client.send(burst)
        await asyncio.sleep(_AFTER_S)
        took.append(max(0.0, caller.sound_at - since) * 1000)
    return took


async def measure(is_short: bool) -> Report:
    """Return the table with the goals for CPU time and for barge-in."""
    rounds, seconds, stops = (2, 4.0, 24) if is_short else (4, 8.0, 128)
    with ExitStack() as stack:
        worker = stack.enter_context(running("benchmarks.load.worker", "--obeys"))
        process = stack.enter_context(adapter(worker.address, "--max-cpu", "0", "--max-loop-lag-ms", "0"))
        units = [await converse(process.port, lambda client, event: None) for _ in range(SESSIONS)]
        callers = [LiveClient() for _ in range(SESSIONS)]
        for caller in callers:
            await caller.connect(process.port)
        live = [caller.client for caller in callers if caller.client is not None]
        idle, _ = await _cost(
            process, live, text_frame(b'{"type":"session.input_audio.unmute"}'), 60.0, seconds
        )
        found: dict[str, list[float]] = {"one event": [], "Live": [], "detector": []}
        for _ in range(rounds):
            cost, _ = await _cost(process, units, text_frame(APPEND), 1.0, seconds)
            found["one event"].append(cost - idle)
            cost, heard = await _cost(process, live, piece(1 / PIECES, _QUIET), 1.0 / PIECES, seconds)
            found["Live"].append(cost)
            found["detector"].append(heard)
        took = sorted(await _stops(callers, stops))
    unit, second, heard = (statistics.median(values) for values in found.values())
    p50, p99 = took[len(took) // 2], took[min(len(took) - 1, int(0.99 * len(took)))]
    rows: list[tuple[Any, ...]] = [
        ("a unit of /ws/duplex, one event", unit, 1.0),
        (f"a second of Live, {PIECES} events", second, second / unit),
        ("of which: output of silence to an idle client", idle, idle / unit),
        ("in addition: the barge-in detector's thread", heard, heard / unit),
    ]
    return Report(
        "live",
        f"CPU of the adapter per second of a session, {SESSIONS} sessions in real time",
        ("what", "CPU-us", "of a unit"),
        rows,
        (
            Goal("Live: CPU time of a second over that of a unit", second / unit, MOST_TIMES),
            Goal(f"Live: ms from barge-in to the last audio, p99 of {len(took)}", p99, MOST_MS),
        ),
        f"the answer stopped after {p50:.1f} ms (median)",
    )
