"""A conversation by microphone and speakers, until Ctrl-C."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from antiphon.audio.devices import Device, Microphone, Speaker
from antiphon.cli.conversations.duplex import Heard
from antiphon.cli.output.timeline import Report
from antiphon.client import connect
from antiphon.errors import SessionClosed
from antiphon.protocol.events import AudioDelta, Interrupted
from antiphon.session.duplex import DuplexSession

_LAST_WORDS_S: Final = 30.0
"""Longest that the speaker plays on after the server has ended the conversation."""


async def speak(
    url: str,
    api_key: str | None,
    microphone: Device,
    speaker: Device,
    limit_s: float | None,
    report: Report,
    heard: Heard,
) -> None:
    """Send what the microphone records and play what the model says, until Ctrl-C or for `limit_s`.

    A second Ctrl-C cancels the task. Raises the errors of the SDK.
    """
    async with Microphone(microphone) as recorded, Speaker(speaker) as played:
        async with connect(url, api_key) as client:
            async with client.duplex(on_queue=report.event, reconnect=True) as session:
                recorded.skip()
                report.line("listens", "speak; Ctrl-C ends the conversation")
                with _stopped_by_ctrl_c() as stop:
                    await _converse(session, recorded, played, stop, limit_s, report, heard)
            async for event in session:
                report.event(event)


async def _converse(
    session: DuplexSession,
    recorded: Microphone,
    played: Speaker,
    stop: asyncio.Event,
    limit_s: float | None,
    report: Report,
    heard: Heard,
) -> None:
    """Return when the user or the server ends it, or when time is up."""
    talking = asyncio.create_task(_send(session, recorded))
    listening = asyncio.create_task(_play(session, played, report, heard))
    stopping = asyncio.create_task(stop.wait())
    tasks: tuple[asyncio.Task[object], ...] = (listening, talking, stopping)
    try:
        done, _ = await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            report.line("time is up", f"after {limit_s:.0f} s")
        for ended in (listening, talking):
            if ended in done:
                await ended
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send(session: DuplexSession, recorded: Microphone) -> None:
    """Send every block. The end of the session is told to the task that receives."""
    with suppress(SessionClosed):
        async for block in recorded:
            await session.send_audio(block)
    await asyncio.Event().wait()


async def _play(session: DuplexSession, played: Speaker, report: Report, heard: Heard) -> None:
    """Play and report every event; after the last one the speaker plays out."""
    async for event in session:
        report.event(event)
        heard.take(event)
        if isinstance(event, AudioDelta):
            played.play(event.samples)
        elif isinstance(event, Interrupted):
            played.interrupt()
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_WORDS_S):
            await played.wait_played()


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
