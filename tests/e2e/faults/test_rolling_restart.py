"""`antiphon serve` replaces all its processes under a conversation with the shipped model, which goes on."""

import asyncio
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import numpy as np
import pytest

import antiphon
from antiphon.session.duplex import DuplexSession
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


class Serving:
    """`antiphon serve` with two adapters and two workers."""

    def __init__(self, process: "subprocess.Popen[str]", log: TextIO) -> None:
        self._process = process
        self._log = log
        assert process.stdout is not None
        banner = ""
        for line in process.stdout:
            banner += line
            if "Ctrl-C" in line:
                break
        found = re.search(r"^  WebSocket +(\S+)$", banner, re.MULTILINE)
        assert found is not None, self.told
        self.url = found[1]

    @property
    def told(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def restart(self) -> None:
        self._process.send_signal(signal.SIGUSR1)

    @property
    def is_replaced(self) -> bool:
        return "All have been replaced." in self.told


@contextmanager
def serving() -> Iterator[Serving]:
    with tempfile.TemporaryFile("w+") as log:
        command = [*ANTIPHON, "serve", "--port", "0", *OPTIONS]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        try:
            yield Serving(process, log)
        finally:
            process.terminate()
            try:
                assert process.wait(START_S) == 0
            finally:
                process.kill()
                if process.stdout is not None:
                    process.stdout.close()


class Talk:
    """A conversation of units that are each answered before the next one is sent."""

    def __init__(self, session: DuplexSession) -> None:
        self._session = session
        self.text = ""
        self.resumed = 0
        self.moved = 0

    async def unit(self, samples: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> None:
        """Send one second, and read until something is told of it."""
        mine = await self._session.send_audio(samples)
        async for event in self._session:
            match event:
                case antiphon.TextDelta():
                    self.text += event.text
                case antiphon.Resumed():
                    self.resumed += 1
                case antiphon.Moved():
                    self.moved += 1
            if getattr(event, "input_id", None) == mine:
                return
        raise AssertionError("the session is over")

    async def ask(self, recording: Recording) -> str:
        self.text = ""
        for samples in recording.units(SILENCE_S):
            await self.unit(samples)
        return self.text


async def test_conversation_goes_on_while_all_processes_are_replaced(recordings: list[Recording]) -> None:
    recording = next(it for it in recordings if it.name == "name")
    with serving() as serve:
        async with asyncio.timeout(4 * PATIENCE_S), antiphon.connect(serve.url) as client:
            async with client.duplex(seed=7, reconnect=True) as session:
                talk = Talk(session)
                before = await talk.ask(recording)
                serve.restart()
                while not serve.is_replaced:
                    await talk.unit(SECOND)
                after = await talk.ask(recording)

    assert before.strip() == after.strip() == recording.reply
    assert talk.resumed >= 1
    assert talk.moved >= 1
