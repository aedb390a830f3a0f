"""`antiphon serve` as a process: its banner, its end, and what is left after every kind of end."""

import asyncio
import os
import signal
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import antiphon
from antiphon.grpc import get_info
from tests.cli.processes import serving, wait_until

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


def test_every_address_of_the_banner_answers(tmp_path: Path) -> None:
    with serving(tmp_path) as serve:
        with urllib.request.urlopen(serve.address("Health"), timeout=10) as answer:
            assert answer.status == 200
        info = asyncio.run(get_info(serve.address("gRPC")))
        said = asyncio.run(one_turn(serve.address("WebSocket")))

    title = f"Antiphon {antiphon.__version__} | scripted | 2 slots | no key: loopback only"
    assert serve.banner.splitlines()[0].strip() == title
    assert info.model == "scripted"
    assert said == "Hello there how are you?"


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
