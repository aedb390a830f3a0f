"""Tests of `antiphon transcribe` with a scripted server: text on stdout, the rest on stderr."""

import asyncio
import json
import shlex
import signal
import subprocess
import time
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon import write_wav
from tests.cli.conftest import TONE
from tests.cli.support.process import ANTIPHON, Outcome
from tests.sdk.audio.test_wav import wav_bytes
from tests.sdk.replay import Peer, replay
from tests.sdk.session.test_transcription import (
    APPEND,
    COMMIT,
    GREETING,
    UPDATE,
    delta,
    done,
    fault,
    utterance,
)
from tests.support.patience import PATIENCE_S

PCM = (TONE * 32768).round().astype("<i2")


@pytest.fixture
def question(tmp_path: Path) -> Path:
    """A recording that does not fit into one event."""
    path = tmp_path / "question.wav"
    write_wav(path, TONE, 16_000)
    return path


async def start(url: str, *arguments: str | Path) -> Any:
    """Start `antiphon transcribe` with pipes."""
    command = (*ANTIPHON, "transcribe", *map(str, arguments), "--url", url)
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)


async def end(process: Any) -> Outcome:
    """Wait for its end, while its standard input stays open."""
    async with asyncio.timeout(PATIENCE_S):
        out, err, code = await asyncio.gather(process.stdout.read(), process.stderr.read(), process.wait())
    process.stdin.close()
    return Outcome(code, out.decode(), err.decode())


async def begun(peer: Peer, *received: str) -> None:
    """Greets, and takes events of these types."""
    await peer.send(GREETING)
    for name in received:
        await peer.receive(name)


async def silent(peer: Peer) -> None:
    """Greets and waits for the end."""
    await peer.send(GREETING)
    await peer.socket.wait_closed()


class Scribe:
    """Hears one utterance, then writes " good morning"."""

    def __init__(self) -> None:
        self.heard = np.zeros(0, "<i2")
        self.model: object = None

    async def write(self, peer: Peer) -> None:
        await peer.send(GREETING)
        self.model = (await peer.receive(UPDATE))["model"]
        self.heard = np.concatenate(await utterance(peer))
        await peer.send(delta(" good"), delta(" morning"), done(" good morning"))
        await peer.socket.wait_closed()


async def transcribe(
    script: Callable[[Peer], Awaitable[None]], *arguments: str | Path, piped: bytes | None = None
) -> Outcome:
    async with replay(script) as url:
        command = [*ANTIPHON, "transcribe", *map(str, arguments), "--url", url]
        done = await asyncio.to_thread(
            subprocess.run, command, input=piped, capture_output=True, timeout=PATIENCE_S
        )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize(
    ("options", "model"),
    [((), "antiphon-mini"), (("--realtime", "--model", "voxtral"), "voxtral")],
    ids=["default", "realtime"],
)
async def test_file_is_transcribed_fast_or_in_real_time(
    question: Path, options: tuple[str, ...], model: str
) -> None:
    scribe = Scribe()
    begin = time.monotonic()

    assert await transcribe(scribe.write, question, *options) == Outcome(0, "good morning\n", "")
    assert scribe.model == model
    assert not options or time.monotonic() - begin >= len(TONE) / 16_000
    assert len(scribe.heard) == len(TONE)
    assert np.abs(scribe.heard - PCM).max() <= 1


async def test_words_are_printed_while_the_recording_is_sent(question: Path) -> None:
    printed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await begun(peer, UPDATE, COMMIT, APPEND)
        await peer.send(delta(" good"))
        await asyncio.wait_for(printed.wait(), PATIENCE_S)
        while (await peer.request())["type"] == APPEND:
            pass
        await peer.send(done(" good"))
        await peer.socket.wait_closed()

    async with replay(script) as url:
        process = await start(url, question, "--realtime")
        assert await asyncio.wait_for(process.stdout.readexactly(4), PATIENCE_S) == b"good"
        printed.set()
        assert await end(process) == Outcome(0, "\n", "")


async def test_events_as_json(question: Path) -> None:
    outcome = await transcribe(Scribe().write, question, "--json")

    events = [json.loads(line) for line in outcome.out.splitlines()]
    assert all(event.pop("time_s") >= 0 for event in events)
    assert events == [
        {"type": "text", "text": " good"},
        {"type": "text", "text": " morning"},
        {"type": "transcript", "text": " good morning", "prompt_tokens": 39, "completion_tokens": 2},
    ]
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize("form", ["raw", "wav", "wav with more after the samples", "wav of unknown size"])
async def test_standard_input_is_transcribed(form: str) -> None:
    scribe = Scribe()
    piped = {
        "raw": PCM.tobytes() + b"\0",
        "wav": wav_bytes(PCM.tobytes()),
        "wav with more after the samples": wav_bytes(PCM.tobytes()) + b"LIST\4\0\0\0mood",
        "wav of unknown size": wav_bytes(b"")[:-4] + b"\xff\xff\xff\xff" + PCM.tobytes(),
    }[form]

    assert await transcribe(scribe.write, "-", piped=piped) == Outcome(0, "good morning\n", "")
    assert len(scribe.heard) == len(TONE)
    assert np.abs(scribe.heard - PCM).max() <= 1


async def test_ctrl_c_ends_the_piped_audio_and_its_text_is_printed() -> None:
    heard = asyncio.Event()

    async def script(peer: Peer) -> None:
        await begun(peer, UPDATE, COMMIT, APPEND)
        heard.set()
        assert (await peer.receive(COMMIT))["final"] is True
        await peer.send(delta(" good"), done(" good"))
        await peer.socket.wait_closed()

    async with replay(script) as url:
        process = await start(url, "-")
        process.stdin.write(PCM[:1600].tobytes())
        await asyncio.wait_for(heard.wait(), PATIENCE_S)
        process.send_signal(signal.SIGINT)
        assert await end(process) == Outcome(0, "good\n", "")


async def test_second_ctrl_c_ends_the_command() -> None:
    heard, final = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await begun(peer, UPDATE, COMMIT, APPEND)
        heard.set()
        await peer.receive(COMMIT)
        final.set()
        await peer.socket.wait_closed()

    async with replay(script) as url:
        process = await start(url, "-")
        process.stdin.write(PCM[:1600].tobytes())
        for event in (heard, final):
            await asyncio.wait_for(event.wait(), PATIENCE_S)
            process.send_signal(signal.SIGINT)
        ended = await end(process)
    assert (ended.code, ended.err) == (1, "Interrupted.\n")


@pytest.mark.parametrize(
    ("piped", "text"),
    [
        (b"", "Standard input held no audio."),
        (b"\0", "Standard input held no audio."),
        (b"RIFF\0\0\0\0AVI " + bytes(1 << 17), "stdin.wav is no WAV file."),
        ("44100", "stdin.wav has 44100 Hz and 1 channel; mono at 16000 Hz"),
    ],
)
async def test_unusable_standard_input_is_refused(piped: bytes | str, text: str, tmp_path: Path) -> None:
    if isinstance(piped, str):
        write_wav(tmp_path / "music.wav", TONE, int(piped))
        piped = (tmp_path / "music.wav").read_bytes()

    outcome = await transcribe(silent, "-", piped=piped)

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(text)


async def test_closed_standard_input_is_reported() -> None:
    async with replay(silent) as url:
        command = shlex.join([*ANTIPHON, "transcribe", "-", "--url", url])
        process = await asyncio.create_subprocess_shell(f"{command} <&-", stderr=subprocess.PIPE)
        _, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)

    assert (process.returncode, err[:33]) == (2, b"Standard input held no audio. Pip")


@pytest.mark.parametrize(
    ("is_heard", "ending", "said"),
    [
        (
            False,
            ("idle_timeout", "No audio came for 30 s."),
            "The transcription failed: No audio came for 30 s (idle_timeout).\n",
        ),
        (True, ("context_full", "The context is full."), "context_full"),
    ],
    ids=["early", "after the text"],
)
async def test_end_by_the_server_is_reported_with_its_reason(
    question: Path, is_heard: bool, ending: tuple[str, str], said: str
) -> None:
    async def script(peer: Peer) -> None:
        await begun(peer, UPDATE)
        if is_heard:
            await utterance(peer)
        else:
            await peer.receive(COMMIT)
        await peer.send(delta(" good"), done(" good"), fault(*ending))
        await peer.socket.wait_closed()

    outcome = await transcribe(script, question, *([] if is_heard else ["--realtime"]))

    assert (outcome.code, outcome.out) == (1, "good\n")
    assert said in outcome.err


async def test_lost_server_is_reported(question: Path) -> None:
    async def leave(peer: Peer) -> None:
        await begun(peer, UPDATE, COMMIT)
        await peer.socket.close(1012)

    lost = await transcribe(leave, question, "--realtime")

    assert (lost.code, lost.out) == (1, "")
    assert lost.err.startswith("The session ended: server_shutdown (code 1012).")
