"""Events that wait to be read, and what gives way when too many do."""

import asyncio

import numpy as np
import pytest

from antiphon import (
    AudioDelta,
    Closed,
    Event,
    Interrupted,
    Listening,
    SessionClosed,
    TextDelta,
)
from antiphon.session.mailbox import EventMailbox, WaitingMailbox
from tests.support.patience import PATIENCE_S


def text(word: str) -> TextDelta:
    return TextDelta(word, "resp_1", None, None)


def audio() -> AudioDelta:
    return AudioDelta(np.zeros(1, np.float32), "resp_1", None, None)


async def rest(mailbox: EventMailbox) -> list[Event]:
    mailbox.finish()
    events = []
    while True:
        try:
            events.append(await mailbox.get())
        except StopAsyncIteration:
            return events


async def test_order_is_kept() -> None:
    mailbox = EventMailbox()
    for word in "abc":
        mailbox.put(text(word))

    assert await rest(mailbox) == [text("a"), text("b"), text("c")]


async def test_reader_waits_for_the_next_event() -> None:
    mailbox = EventMailbox()
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    assert not reader.done()

    mailbox.put(text("a"))

    assert await reader == text("a")


async def test_oldest_audio_gives_way_first() -> None:
    first, second = audio(), audio()
    mailbox = EventMailbox(capacity=4)
    for event in (text("a"), first, Listening(1, None), second, text("b")):
        mailbox.put(event)

    assert await rest(mailbox) == [text("a"), Listening(1, None), second, text("b")]
    assert mailbox.dropped == 1


async def test_listening_gives_way_when_there_is_no_audio() -> None:
    mailbox = EventMailbox(capacity=2)
    for event in (text("a"), Listening(1, None), Interrupted("resp_1", 2, None)):
        mailbox.put(event)

    assert await rest(mailbox) == [text("a"), Interrupted("resp_1", 2, None)]


async def test_closed_never_gives_way() -> None:
    mailbox = EventMailbox(capacity=2)
    closed = Closed("user_stop", None, None)
    for event in (closed, text("a"), text("b")):
        mailbox.put(event)

    assert await rest(mailbox) == [closed, text("b")]


async def test_error_comes_after_everything_that_was_received_before_it() -> None:
    mailbox = EventMailbox()
    mailbox.put(text("a"))
    mailbox.finish(SessionClosed("connection_lost"))
    mailbox.finish()

    assert await mailbox.get() == text("a")
    for _ in range(2):
        with pytest.raises(SessionClosed, match="connection_lost"):
            await mailbox.get()


async def test_full_stream_waits_for_its_reader() -> None:
    mailbox: WaitingMailbox[int] = WaitingMailbox(capacity=1)
    await mailbox.put(1)
    second = asyncio.create_task(mailbox.put(2))
    await asyncio.sleep(0)
    assert not second.done()

    assert await mailbox.get() == 1
    await second

    assert await mailbox.get() == 2


async def test_nobody_waits_for_a_reader_that_has_gone() -> None:
    mailbox: WaitingMailbox[int] = WaitingMailbox(capacity=1)
    await mailbox.put(1)
    second = asyncio.create_task(mailbox.put(2))
    await asyncio.sleep(0)

    mailbox.discard()

    await asyncio.wait_for(second, PATIENCE_S)
