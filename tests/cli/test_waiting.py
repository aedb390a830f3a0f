"""Tests of the queue position that commands show while they wait for a slot."""

import asyncio
import re
from pathlib import Path

import numpy as np
import pytest

from antiphon import write_wav
from antiphon.protocol.events import Queued
from antiphon_command.output.terminal import place_words
from tests.cli.support.process import ANTIPHON
from tests.cli.support.processes import line_with
from tests.support.scripted_engine import ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.conversation import CLOSE
from tests.ws_adapter.support.stage import running_adapter


async def test_talk_marks_guessed_wait_time(tmp_path: Path) -> None:
    question = tmp_path / "question.wav"
    write_wav(question, np.zeros(8000, np.float32), 16_000)
    engine = ScriptedEngine(listen(), slots=1, repeat=True)
    async with running_worker(engine, slots=1) as worker, running_adapter(worker.address) as stage:
        async with stage.client() as holder:
            await holder.begin()
            talk = await asyncio.create_subprocess_exec(
                *ANTIPHON, "talk", question, "--url", stage.address, stdout=asyncio.subprocess.PIPE
            )
            try:
                line = await line_with(talk.stdout, " queued ")
                assert re.search(r"place 1 of 1, about \d+ s \(a guess\)$", line.rstrip())
                await holder.send(CLOSE)
            finally:
                talk.kill()
                await talk.communicate()


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (Queued(2, 3, 35.2, "t"), "place 2 of 3, about 35 s"),
        (Queued(2, 3, 7.0, "t", estimate_is_guess=True), "place 2 of 3, about 7 s (a guess)"),
        (Queued(1, 1, 0.0, "t", estimate_is_guess=True), "place 1 of 1"),
    ],
)
def test_queue_place_is_formatted_as_text(place: Queued, words: str) -> None:
    assert place_words(place) == words
