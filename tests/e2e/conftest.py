"""A real worker and a real adapter as processes, with the shipped checkpoint."""

import asyncio
import json
import re
import tempfile
import time
import urllib.error
import urllib.request
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import pytest
from numpy.typing import NDArray

from clients.recordings import make
from tests.support.forks.process import Process, start
from tests.support.patience import PATIENCE_S, START_S
from tests.ws_adapter.support.process import ADAPTER_OPTIONS

FOLDER = Path(make.__file__).parent
RATE = 16_000
SLOTS = 12


@dataclass(frozen=True)
class Recording:
    name: str
    reply: str
    pcm: NDArray[np.float32]

    def units(self, silence: int) -> list[NDArray[np.float32]]:
        seconds = -(-len(self.pcm) // RATE)
        padded = np.zeros((seconds + silence) * RATE, np.float32)
        padded[: len(self.pcm)] = self.pcm
        return list(padded.reshape(-1, RATE))


@pytest.fixture(autouse=True)
def every_event_is_of_its_dialect(proper_events: None) -> None:
    """Check the events of these clients, which the library and the SDK do not check."""


@pytest.fixture(scope="session")
def recordings() -> list[Recording]:
    found = []
    for entry in json.loads((FOLDER / "manifest.json").read_text()):
        with wave.open(str(FOLDER / entry["file"])) as file:
            pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
        found.append(Recording(Path(entry["file"]).stem, entry["expected_reply"], pcm))
    return found


@dataclass
class Server:
    process: Process
    address: str
    log: TextIO

    @property
    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()

    @property
    def admin_port(self) -> int:
        found = re.search(r"administration on \S+ port (\d+)", self.said)
        assert found, self.said
        return int(found[1])


@contextmanager
def antiphon(*arguments: str) -> Iterator[Server]:
    with tempfile.TemporaryFile("w+") as log:
        process = start("antiphon_command", *arguments, output=log)
        try:
            yield Server(process, _ready_address(process, log), log)
        finally:
            process.stdin.close()
            process.terminate()
            process.wait(timeout=PATIENCE_S)


def _ready_address(process: Process, log: TextIO) -> str:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        log.seek(0)
        ready = re.search(r"ready on (\S+)$", log.read(), re.MULTILINE)
        if ready:
            return ready[1]
        time.sleep(0.05)
    log.seek(0)
    pytest.fail(f"did not become ready:\n{log.read()}")


@contextmanager
def running_worker(*arguments: str, slots: int = SLOTS) -> Iterator[Server]:
    with antiphon("worker", "--listen", "127.0.0.1:0", "--slots", str(slots), *arguments) as server:
        yield server


@contextmanager
def running_adapter(worker: str, *arguments: str) -> Iterator[Server]:
    with antiphon("adapter", "--port", "0", "--worker", worker, *ADAPTER_OPTIONS, *arguments) as server:
        yield server


@pytest.fixture(scope="session")
def worker() -> Iterator[str]:
    with running_worker("--no-admission") as server:
        yield server.address


@pytest.fixture(scope="session")
def adapter(worker: str) -> Iterator[str]:
    with running_adapter(worker) as server:
        yield server.address


def readiness(adapter: str) -> dict[str, object]:
    try:
        with urllib.request.urlopen(f"{adapter}/ready", timeout=PATIENCE_S) as response:
            return dict(json.load(response))
    except urllib.error.HTTPError as refused:
        return dict(json.load(refused))


async def until_free(adapter: str, slots: int, within_s: float) -> float:
    begin = time.monotonic()
    while (await asyncio.to_thread(readiness, adapter))["free_slots"] != slots:
        assert time.monotonic() - begin < within_s, f"not {slots} free slots within {within_s} s"
        await asyncio.sleep(0.02)
    return time.monotonic() - begin


async def until_all_free(adapter: str) -> None:
    """Wait until every session of earlier tests is cleaned up."""
    await until_free(adapter, SLOTS, within_s=PATIENCE_S)
