"""`antiphon serve` replaces all its processes under a conversation with the shipped model, which goes on."""

import asyncio
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import antiphon
from tests.cli.support.process import ANTIPHON
from tests.e2e.conftest import Recording
from tests.support.patience import PATIENCE_S, START_S
from tests.support.redis_server import INSTALLED, MISSING

OPTIONS = (
    *("--adapters", "2", "--workers", "2", "--slots", "2", "--journal", "redis"),
    *("--resume-window-s", "60", "--drain-timeout-s", "2"),
)
SECOND = np.zeros(16_000, np.float32)
SILENCE_S = 6

pytestmark = [pytest.mark.long, pytest.mark.skipif(INSTALLED is None, reason=MISSING)]


@contextmanager
def serving(log: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """The address of two adapters of two workers, and what replaces them all."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*ANTIPHON, "serve", "--port", "0", *OPTIONS],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    with process:
        try:
            assert process.stdout is not None
            banner = ""
            while "Ctrl-C" not in banner and (line := process.stdout.readline()):
                banner += line
            found = re.search(r"^  WebSocket +(\S+)$", banner, re.MULTILINE)
            assert found is not None, log.read_text()
            yield found[1], lambda: process.send_signal(signal.SIGUSR1)
            process.terminate()
            assert process.wait(START_S) == 0
        finally:
            process.kill()


async def test_conversation_goes_on_while_all_processes_are_replaced(
    recordings: list[Recording], tmp_path: Path
) -> None:
    recording = next(it for it in recordings if it.name == "name")
    told = list[antiphon.Event]()

    async def said(units: list[np.ndarray]) -> str:
        """Send each unit after the answer to the one before, and return the text."""
        begin = len(told)
        for samples in units:
            mine = await session.send_audio(samples)
            async for event in session:
                told.append(event)
                if getattr(event, "input_id", None) == mine:
                    break
            else:
                raise AssertionError("the session is over")
        return "".join(it.text for it in told[begin:] if isinstance(it, antiphon.TextDelta)).strip()

    log = tmp_path / "log"
    with serving(log) as (url, replace):
        async with asyncio.timeout(4 * PATIENCE_S), antiphon.connect(url) as client:
            async with client.duplex(seed=7, reconnect=True) as session:
                before = await said(recording.units(SILENCE_S))
                replace()
                while "All have been replaced." not in log.read_text():
                    await said([SECOND])
                after = await said(recording.units(SILENCE_S))

    assert before == after == recording.reply
    assert any(isinstance(event, antiphon.Resumed) for event in told)
    assert any(isinstance(event, antiphon.Moved) for event in told)
