"""Makes recordings, and reads them back the way a program of a user would."""

import base64
import errno
import itertools
import json
import os
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.patience import PATIENCE_S
from tests.ws_adapter.support.stage import ManualClock
from ws_adapter.recording.folder import Client
from ws_adapter.recording.recorder import Recorder

NOBODY = Client("127.0.0.1")
_RANDOM = np.random.default_rng(7)


def noise(seconds: float, rate_hz: int = 16_000) -> NDArray[np.float32]:
    samples: NDArray[np.float32] = _RANDOM.uniform(-1, 1, round(seconds * rate_hz)).astype("<f4")
    return samples


def b64(data: bytes | NDArray[Any]) -> str:
    return base64.b64encode(data if isinstance(data, bytes) else data.tobytes()).decode()


def append(samples: bytes | NDArray[Any], **fields: Any) -> bytes:
    return json.dumps({"type": "input.append", "input": {"audio": b64(samples), **fields}}).encode()


def delta(samples: NDArray[Any]) -> bytes:
    return json.dumps({"type": "response.output.delta", "kind": "audio", "audio": b64(samples)}).encode()


@asynccontextmanager
async def recording_to(
    root: Path, clock: ManualClock | None = None, **options: Any
) -> AsyncIterator[Recorder]:
    """A recorder without bounds; on leaving the block everything is written."""
    options = {"max_age_s": 0.0, "max_bytes": 0, "most_of_all": 2.0, "flush_s": PATIENCE_S, **options}
    recorder = Recorder(root, clock or ManualClock(), **options)
    recorder.start()
    try:
        yield recorder
    finally:
        await recorder.close()


def failing(name: str, after: int = 0, code: int = errno.ENOSPC) -> Callable[..., Any]:
    """A function of `os` that works `after` times in the recorder's thread and then fails there."""
    works, calls = getattr(os, name), itertools.count()

    def call(*arguments: Any, **options: Any) -> Any:
        if threading.current_thread().name == "recorder" and next(calls) >= after:
            raise OSError(code, os.strerror(code))
        return works(*arguments, **options)

    return call


@dataclass
class Read:
    """A recording: `meta.json`, the lines of `stream.jsonl`, and its folder."""

    folder: Path
    meta: dict[str, Any]
    lines: list[dict[str, Any]]

    def events(self, direction: str) -> list[Any]:
        return [line["frame"] for line in self.lines if line["dir"] == direction]

    def samples(self, reference: dict[str, Any]) -> NDArray[np.float32]:
        """Return the samples that `reference` points to."""
        rate_hz, samples = read_wav(self.folder / reference["file"])
        assert rate_hz == reference["sample_rate"]
        start = reference.get("start", 0)
        assert len(samples) >= start + reference["samples"]
        return samples[start : start + reference["samples"]]


def read_recording(folder: Path) -> Read:
    lines = []
    if (folder / "stream.jsonl").exists():
        text = (folder / "stream.jsonl").read_text()
        assert not text or text.endswith("\n")
        lines = [json.loads(line) for line in text.splitlines()]
    return Read(folder, json.loads((folder / "meta.json").read_text()), lines)


def read_wav(path: Path) -> tuple[int, NDArray[np.float32]]:
    """Sample rate and float32 samples; sizes in the headers must be exact."""
    raw = path.read_bytes()
    magic, size, form = struct.unpack_from("<4sI4s", raw)
    assert (magic, size, form) == (b"RIFF", len(raw) - 8, b"WAVE")
    position, rate_hz = 12, 0
    while position < len(raw):
        name, size = struct.unpack_from("<4sI", raw, position)
        body = raw[position + 8 : position + 8 + size]
        assert len(body) == size
        if name == b"fmt ":
            encoding, channels, rate_hz, bytes_per_s, block, bits = struct.unpack_from("<HHIIHH", body)
            assert (encoding, channels, bits, block, bytes_per_s) == (3, 1, 32, 4, rate_hz * 4)
        elif name == b"data":
            return rate_hz, np.frombuffer(body, "<f4")
        position += 8 + size + size % 2
    raise AssertionError("no samples")
