"""A conversation by microphone and speakers, until Ctrl-C."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from antiphon.audio.devices import Device, Microphone, Speaker
from antiphon.client import connect
from antiphon.errors import SessionClosed
from antiphon.protocol.events import AudioDelta, Interrupted
from antiphon.session.duplex import DuplexSession
from antiphon_command.conversations.duplex import Answers
from antiphon_command.output.timeline import Report

_PLAY_OUT_S: Final = 30.0
"""The longest time in seconds that buffered audio is played after the server has ended the conversation."""

_LINE_BYTES: Final = 4096


async def speak(
    url: str,
    api_key: str | None,
    microphone: Device,
    speaker: Device,
    limit_s: float | None,
    report: Report,
    heard: Answers,
) -> None:
    """Send the microphone's audio and play the model's, until Ctrl-C or for `limit_s`.

    A second Ctrl-C cancels the task. Raises the errors of the SDK.
    """
    async with Microphone(microphone) as recorded, Speaker(speaker) as played:
        async with connect(url, api_key) as client:
            async with client.duplex(on_queue=report.event, reconnect=True) as session:
                recorded.skip()
                report.line("listens", f"speak; {_keys()}Ctrl-C ends the conversation")
                with _stopped_by_ctrl_c() as stop, _enter_pressed() as pressed:
                    await _converse(session, recorded, played, stop, pressed, limit_s, report, heard)
            async for event in session:
                report.event(event)


async def _converse(
    session: DuplexSession,
    recorded: Microphone,
    played: Speaker,
    stop: asyncio.Event,
    pressed: asyncio.Event,
    limit_s: float | None,
    report: Report,
    heard: Answers,
) -> None:
    """Run until the user or the server ends the conversation, or until the time is up."""
    talking = asyncio.create_task(_send(session, recorded))
    pausing = asyncio.create_task(_pause(session, played, pressed, report))
    listening = asyncio.create_task(_play(session, played, report, heard))
    stopping = asyncio.create_task(stop.wait())
    tasks: tuple[asyncio.Task[object], ...] = (listening, talking, pausing, stopping)
    try:
        done, _ = await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            report.line("time is up", f"after {limit_s:.0f} s")
        for ended in (listening, talking, pausing):
            if ended in done:
                await ended
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send(session: DuplexSession, recorded: Microphone) -> None:
    """Send every block, except while the conversation is paused; never return.

    The receiving task reports the end of the session.
    """
    with suppress(SessionClosed):
        async for block in recorded:
            if not session.is_paused:
                await session.send_audio(block)
    await asyncio.Event().wait()


async def _pause(session: DuplexSession, played: Speaker, pressed: asyncio.Event, report: Report) -> None:
    """Pause or resume the conversation each time that the user presses Enter."""
    with suppress(SessionClosed):
        while await pressed.wait():
            pressed.clear()
            if session.is_paused:
                await session.resume()
                report.line("listens", f"speak; {_keys()}Ctrl-C ends the conversation")
                continue
            await session.force_listen()
            await session.pause()
            played.interrupt()
            report.line("paused", "the microphone is off; Enter goes on")
    await asyncio.Event().wait()


async def _play(session: DuplexSession, played: Speaker, report: Report, heard: Answers) -> None:
    """Report every event and play its audio; after the last one wait until all audio is played."""
    async for event in session:
        report.event(event)
        heard.take(event)
        if isinstance(event, AudioDelta):
            played.play(event.samples)
        elif isinstance(event, Interrupted):
            played.interrupt()
    with suppress(TimeoutError):
        async with asyncio.timeout(_PLAY_OUT_S):
            await played.wait_played()


def _keys() -> str:
    return "Enter pauses it, " if _has_keys() else ""


def _has_keys() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


@contextmanager
def _enter_pressed() -> Iterator[asyncio.Event]:
    """Yield an event that each line typed at the terminal sets."""
    pressed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_input() -> None:
        if os.read(stdin, _LINE_BYTES):
            pressed.set()
        else:
            loop.remove_reader(stdin)

    if not _has_keys():
        yield pressed
        return
    stdin = sys.stdin.fileno()
    loop.add_reader(stdin, on_input)
    try:
        yield pressed
    finally:
        loop.remove_reader(stdin)


@contextmanager
def _stopped_by_ctrl_c() -> Iterator[asyncio.Event]:
    """Yield an event that the first Ctrl-C sets; the second one cancels this task."""
    stop = asyncio.Event()
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    loop.add_signal_handler(signal.SIGINT, on_signal)
    try:
        yield stop
    finally:
        loop.remove_signal_handler(signal.SIGINT)
