"""`antiphon talk` by microphone and speakers, over a stand-in for the devices."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from antiphon.audio.wav import read_wav
from tests.cli.support.process import run_cli
from tests.cli.support.processes import line_with
from tests.support.patience import START_S


@asynccontextmanager
async def talking(
    question: Path, url: str, *options: str | Path, terminal: int | None = None
) -> AsyncIterator[Process]:
    """The command, with a microphone that hears the question; ended whatever happens."""
    command = [sys.executable, "-m", "tests.cli.support.spoken_antiphon", question]
    arguments = [*command, question.with_name("played.wav"), "talk", "--url", url, *options]
    process = await asyncio.create_subprocess_exec(
        *map(str, arguments), stdin=terminal, stdout=PIPE, stderr=PIPE
    )
    try:
        async with asyncio.timeout(START_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.long
async def test_ctrl_c_ends_a_spoken_conversation(url: str, question: Path) -> None:
    out = question.with_name("answer.wav")
    async with talking(question, url, "--out", out) as process:
        await line_with(process.stdout, "Ctrl-C ends the conversation")
        await line_with(process.stdout, "turn ends")
        await line_with(process.stdout, "turn ends")
        process.send_signal(signal.SIGINT)
        _, errors = await process.communicate()

    assert process.returncode == 0, errors.decode()
    assert errors.decode() == ""
    assert np.any(read_wav(out, 24_000))
    assert np.any(read_wav(question.with_name("played.wav"), 24_000))


async def test_enter_pauses_a_spoken_conversation_and_resumes_it(url: str, question: Path) -> None:
    keyboard, terminal = os.openpty()
    try:
        async with talking(question, url, terminal=terminal) as process:
            await line_with(process.stdout, "Enter pauses it, Ctrl-C ends the conversation")
            await line_with(process.stdout, "turn ends")
            os.write(keyboard, b"\n")
            await line_with(process.stdout, "Enter goes on")
            os.write(keyboard, b"\n")
            await line_with(process.stdout, "Enter pauses it")
            await line_with(process.stdout, "turn ends")
            process.send_signal(signal.SIGINT)
            _, errors = await process.communicate()
    finally:
        os.close(keyboard)
        os.close(terminal)

    assert (process.returncode, errors.decode()) == (0, "")


async def test_time_limit_ends_a_spoken_conversation(url: str, question: Path) -> None:
    async with talking(question, url, "--session-timeout", "1", "--json") as process:
        output, errors = await process.communicate()

    assert process.returncode == 0, errors.decode()
    assert "created" in [json.loads(line)["type"] for line in output.decode().splitlines()]


async def test_unreachable_server_exits_with_4(question: Path) -> None:
    async with talking(question, "ws://127.0.0.1:9") as process:
        _, errors = await process.communicate()

    assert process.returncode == 4, errors.decode()


def test_device_options_with_a_file_are_refused(question: Path) -> None:
    done = run_cli("talk", question, "--speaker", "2")

    assert done.code == 2
    assert done.err.startswith("--microphone and --speaker are for a conversation without FILE.")
