"""`antiphon serve` as a process: its banner, its end, and what is left after every kind of end."""

import asyncio
import os
import signal
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import antiphon
from antiphon.cli.serve import print_banner
from antiphon.grpc import get_info
from inference_service.engine.api import Mode
from tests.cli.processes import serving, wait_until
from tests.scripted_engine import INFO, ScriptedEngine, running_worker

SECOND = np.zeros(16_000, np.float32)


async def one_turn(url: str) -> str:
    """Sends silence until the model has said something; returns what."""
    said = ""
    async with antiphon.connect(url) as client, client.duplex() as session:
        async for event in session:
            match event:
                case antiphon.Created() | antiphon.Listening():
                    await session.send_audio(SECOND)
                case antiphon.TextDelta():
                    said += event.text
                    await session.send_audio(SECOND)
                case antiphon.TurnEnd():
                    break
    return said


async def one_answer(url: str) -> str:
    async with antiphon.connect(url) as client, client.chat("Is it true?") as turn:
        return (await turn.answer()).text


async def one_utterance(url: str) -> str:
    async with antiphon.connect(url) as client, client.transcribe() as session:
        await session.send_audio(SECOND)
        await session.end_utterance()
        async for event in session:
            if isinstance(event, antiphon.Transcript):
                break
    return event.text


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short path: that of a Unix socket in it has room for a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="serve-") as folder:
        yield Path(folder)


def test_every_address_of_the_banner_answers(tmp_path: Path) -> None:
    with serving(tmp_path) as serve:
        with urllib.request.urlopen(serve.address("Health"), timeout=10) as answer:
            assert answer.status == 200
        info = asyncio.run(get_info(serve.address("gRPC")))
        said = asyncio.run(one_turn(serve.address("WebSocket")))
        assert serve.address("Chat").endswith("/ws/chat")
        assert serve.address("Transcribe").endswith("/v1/transcription")

    title = f"Antiphon {antiphon.__version__} | scripted | 2 slots | no key: loopback only"
    assert serve.banner.splitlines()[0].strip() == title
    assert info.model == "scripted"
    assert said == "Hello there how are you?"


def test_chat_and_transcription_at_their_addresses(tmp_path: Path) -> None:
    with serving(tmp_path, "reply") as serve:
        assert asyncio.run(one_answer(serve.address("Chat"))) == "Yes."
        assert asyncio.run(one_utterance(serve.address("Transcribe"))).startswith("Yes.")


async def test_banner_offers_only_what_the_model_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    writes = replace(INFO, modes=frozenset({Mode.CHAT, Mode.TOKENS}))
    async with running_worker(ScriptedEngine(info=writes)) as worker:
        await print_banner("http://127.0.0.1:8006", worker.address, "no key: loopback only")

    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert names == ["Chat", "gRPC", "Health", "Ctrl-C"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_everything_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as serve:
        assert set(serve.children()) == {"worker", "adapter"}
        serve.signal(number)

        assert serve.wait() == 0
        serve.assert_nothing_left()


async def drained_conversation(url: str, stop: "asyncio.Event", signalled: "asyncio.Event") -> str:
    async with antiphon.connect(url) as client, client.duplex() as session:
        await anext(session)
        stop.set()
        await signalled.wait()
        await session.send_audio(SECOND)
        return type(await anext(session)).__name__


def test_running_conversation_may_finish(tmp_path: Path) -> None:
    async def stop_in_the_middle() -> str:
        stop, signalled = asyncio.Event(), asyncio.Event()
        talking = asyncio.create_task(drained_conversation(serve.address("WebSocket"), stop, signalled))
        await stop.wait()
        serve.signal(signal.SIGTERM)
        await asyncio.to_thread(wait_until, lambda: "Draining" in serve.errors, "it says so")
        signalled.set()
        return await talking

    with serving(tmp_path) as serve:
        assert asyncio.run(stop_in_the_middle()) == "Listening"
        assert serve.wait() == 0
        serve.assert_nothing_left()


def test_second_signal_ends_at_once(tmp_path: Path) -> None:
    async def hold_open() -> int:
        async with antiphon.connect(serve.address("WebSocket")) as client, client.duplex():
            serve.signal(signal.SIGINT)
            await asyncio.to_thread(wait_until, lambda: "Draining" in serve.errors, "it says so")
            serve.signal(signal.SIGINT)
            return await asyncio.to_thread(serve.wait, 5)

    with serving(tmp_path) as serve:
        assert asyncio.run(hold_open()) == 1
        serve.assert_nothing_left()


@pytest.mark.parametrize("name", ["worker", "adapter"])
def test_death_of_one_stops_the_other(tmp_path: Path, name: str) -> None:
    with serving(tmp_path) as serve:
        os.kill(serve.children()[name], signal.SIGKILL)

        assert serve.wait() == 1
        assert f"The {name} stopped unexpectedly (killed by SIGKILL)." in serve.errors
        assert "Traceback" not in serve.errors
        serve.assert_nothing_left()


def test_signal_while_it_starts_stops_it_as_well(tmp_path: Path) -> None:
    with serving(tmp_path, wait=False) as serve:
        wait_until(lambda: "worker" in serve.children(), "the worker has been started")
        serve.signal(signal.SIGTERM)

        assert serve.wait() == 0
        assert serve.banner == ""
        serve.assert_nothing_left()


def test_killed_parent_takes_everything_with_it(tmp_path: Path) -> None:
    with serving(tmp_path) as serve:
        assert set(serve.children()) == {"worker", "adapter"}
        serve.signal(signal.SIGKILL)

        assert serve.wait() == -signal.SIGKILL
        serve.assert_nothing_left()
