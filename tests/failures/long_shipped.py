"""Tests of the shipped model whose worker fails in mid answer, without a journal."""

import asyncio
import base64
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from antiphon.audio.wav import read_wav
from clients.recordings import make
from tests.conformance.support.stack import Worker, running_stack, shipped_worker
from tests.failures.link import Link, link_to
from tests.failures.scene import FAILED, SHUTDOWN, End
from tests.failures.visits import TARGET

RATE = 16_000
QUESTION = "abilities"
ANSWER_S = 90.0
Strike = Callable[[Worker, Link], None]


def _end(worker: Worker) -> None:
    for _ in range(2):
        worker.process.terminate()


FAULTS: dict[str, tuple[Strike, End]] = {
    "cut": (lambda worker, link: link.cut(), FAILED),
    "blackhole": (lambda worker, link: link.hold(), FAILED),
    "stop": (lambda worker, link: worker.process.send_signal(signal.SIGSTOP), FAILED),
    "SIGTERM twice": (lambda worker, link: _end(worker), SHUTDOWN),
    "kill": (lambda worker, link: worker.process.kill(), FAILED),
}


def question() -> list[str]:
    """Its seconds, then silence: base64 of float32."""
    samples = read_wav(Path(make.__file__).parent / f"{QUESTION}.wav").astype("<f4").tobytes()
    size = 4 * RATE
    seconds = [samples[start : start + size].ljust(size, b"\0") for start in range(0, len(samples), size)]
    return [base64.b64encode(second).decode() for second in [*seconds, *[bytes(size)] * 8]]


@pytest.mark.parametrize("fault", FAULTS)
async def test_fault_in_mid_turn(fault: str) -> None:
    strike, end = FAULTS[fault]
    with shipped_worker(slots=1) as worker:
        async with link_to(worker.target) as link:
            behind = Worker(worker.process, worker.log, link.address)
            running = running_stack(behind, wait=False, options=("--journal-s", "0"))
            stack = await asyncio.to_thread(running.__enter__)
            try:
                await stack.until(ready=True)
                kinds, code = await _heard(stack.url(TARGET), lambda: strike(worker, link))
            finally:
                worker.process.send_signal(signal.SIGCONT)
                await asyncio.to_thread(running.__exit__, None, None, None)
    assert (tuple(kinds), code) == (end.kinds, end.code)


async def _heard(url: str, strike: Callable[[], None]) -> tuple[list[str], int | None]:
    """Call `strike` at an answer's first word; return the errors and ends after it and the close code."""
    kinds: list[str] = []
    has_struck = False
    async with asyncio.timeout(ANSWER_S), connect(url, max_size=None, ping_interval=None) as socket:
        try:
            async for message in socket:
                event = json.loads(message)
                kind = event["type"]
                if has_struck:
                    ends = kind in ("error", "session.closed")
                    kinds += [f"error:{event['error']['code']}" if kind == "error" else kind] if ends else []
                elif kind == "session.queue_done":
                    await socket.send(json.dumps({"type": "session.init", "payload": {}}))
                elif kind == "session.created":
                    for second in question():
                        await socket.send(json.dumps({"type": "input.append", "input": {"audio": second}}))
                elif event.get("kind") == "text" and event["text"]:
                    has_struck = True
                    strike()
        except ConnectionClosed:
            pass
        assert has_struck, "no answer at all"
        return kinds, socket.close_code
