"""Transcription with the checkpoint of the package, over the public protocol."""

import asyncio
import base64
import json
import re
import shutil
import sys
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.conformance.support.client import Client, Event
from tests.conformance.support.recordings import RECORDINGS
from tests.conformance.support.stack import Stack, running_stack
from tests.conformance.support.transcription_words import (
    COMMIT,
    CREATED,
    FINAL,
    PATH,
    RATE,
    UPDATE,
    append,
    delta,
)
from tests.conformance.support.vllm_program import run_program
from tests.support.patience import PATIENCE_S

DOCS = Path(__file__).parents[3] / "docs"
MODEL = "antiphon-mini"
CHOOSE: Event = {**UPDATE, "model": MODEL}
WORD_ERRORS = 0.3
OUT_OF_DOMAIN = "out_of_domain.wav"


def spoken() -> dict[str, str]:
    """Return file -> transcript of each recording within the model's domain."""
    entries = json.loads((RECORDINGS / "manifest.json").read_text())
    return {entry["file"]: entry["text"] for entry in entries if entry["file"] != OUT_OF_DOMAIN}


def appends(name: str, samples: int = 2048) -> list[Event]:
    """A recording in events."""
    with wave.open(str(RECORDINGS / name)) as file:
        pcm = file.readframes(file.getnframes())
    slices = (pcm[start : start + 2 * samples] for start in range(0, len(pcm), 2 * samples))
    return [{"type": "input_audio_buffer.append", "audio": base64.b64encode(s).decode()} for s in slices]


async def transcribe(client: Client, *names: str) -> list[Event]:
    """The `transcription.done` of each recording, all of them sent at once."""
    for name in names:
        await client.send(COMMIT, *appends(name), FINAL)
    return [(await client.until("transcription.done", within_s=PATIENCE_S))[-1] for _ in names]


def word_errors(said: str, expected: str) -> int:
    """How many words have to be put in, taken out or changed."""
    words = said.split()
    row = list(range(len(words) + 1))
    for i, word in enumerate(expected.split(), 1):
        last, row[0] = row[0], i
        for j, other in enumerate(words, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1]


@asynccontextmanager
async def choosing(shipped: Stack) -> AsyncIterator[Client]:
    """A client that has chosen the model."""
    async with shipped.client(PATH) as client:
        created = await client.next()
        assert created.pop("resume")["token"]
        assert created == CREATED
        await client.send(CHOOSE)
        yield client


async def test_recordings_are_understood(shipped: Stack) -> None:
    expected = spoken()
    async with choosing(shipped) as client:
        done = await transcribe(client, *expected)
    assert all(event["usage"]["prompt_tokens"] == done[0]["usage"]["prompt_tokens"] > 0 for event in done)
    assert all(event["usage"]["completion_tokens"] > len(event["text"].split()) for event in done)
    pairs = list(zip((event["text"] for event in done), expected.values(), strict=True))
    wrong = sum(word_errors(said, meant) for said, meant in pairs)
    assert wrong <= WORD_ERRORS * sum(len(meant.split()) for _, meant in pairs), pairs


async def test_printed_program_prints_what_the_protocol_says(shipped: Stack, tmp_path: Path) -> None:
    shutil.copy(RECORDINGS / "counting.wav", tmp_path / "audio.wav")
    options = ("--default-realtime-mode", "transcription")
    with running_stack(shipped.worker, options=options) as bare:
        said = await run_program(tmp_path, bare.url("/v1/realtime"), MODEL)

    async with choosing(shipped) as client:
        (done,) = await transcribe(client, "counting.wav")
    assert "count" in said
    # The program scales its samples by 32767 and cuts them, so they are not the file's to the last bit.
    assert word_errors(said, done["text"]) <= 1


async def test_text_comes_while_audio_still_arrives(shipped: Stack) -> None:
    events = appends("arithmetic.wav")
    async with choosing(shipped) as client:
        await client.send(COMMIT, *events[:-3])
        first = await client.next()
        assert first == delta(first["delta"])
        await client.send(*events[-3:], FINAL)
        rest = await client.until("transcription.done", within_s=PATIENCE_S)
    assert rest[-1]["text"].startswith(first["delta"])


async def test_pace_and_company_make_no_difference(shipped: Stack) -> None:
    async def one(*names: str) -> str:
        async with choosing(shipped) as client:
            return str((await transcribe(client, *names))[-1]["text"])

    alone = await one("arithmetic.wav")
    crowd = await asyncio.gather(
        one("arithmetic.wav"), one("joke.wav"), one("greeting.wav", "arithmetic.wav")
    )
    assert alone
    assert (crowd[0], crowd[2]) == (alone, alone)


async def test_silence_is_not_made_into_words(shipped: Stack) -> None:
    async with choosing(shipped) as client:
        await client.send(COMMIT, append(20 * RATE, level=0.0), FINAL)
        text = (await client.until("transcription.done", within_s=PATIENCE_S))[-1]["text"]
    assert len(text.split()) <= 2


async def test_example_of_the_documentation_runs(shipped: Stack) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (DOCS / "transcription.md").read_text(), re.DOTALL)
    local = "ws://localhost:8006/v1/transcription"
    assert local in program
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program.replace(local, shipped.url(PATH)),
        cwd=DOCS.parent,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE_S):
        said, _ = await process.communicate()
    assert process.returncode == 0
    text, usage = said.decode().strip().split("\n")
    assert word_errors(text, spoken()["counting.wav"]) <= 2
    assert "prompt_tokens" in usage
