"""Tests of the mailbox of unread events, and of its overflow."""

import asyncio

import numpy as np
import pytest

import antiphon
from antiphon.session.mailbox import EventMailbox, WaitingMailbox
from tests.support.patience import PATIENCE_S


def text(word: str) -> antiphon.TextDelta:
    return antiphon.TextDelta(word, "resp_1", None, None)


def audio() -> antiphon.AudioDelta:
    return antiphon.AudioDelta(np.zeros(1, np.float32), "resp_1", None, None)


async def rest(mailbox: EventMailbox) -> list[antiphon.Event]:
    mailbox.finish()
    events = []
    while True:
        try:
            events.append(await mailbox.get())
        except StopAsyncIteration:
            return events


async def test_reader_waits_for_the_next_event() -> None:
    mailbox = EventMailbox()
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    assert not reader.done()
    mailbox.put(text("a"))
    assert await reader == text("a")


FIRST, SECOND = audio(), audio()
LISTENING, INTERRUPTED = antiphon.Listening(1, None), antiphon.Interrupted("resp_1", 2, None)
CLOSED = antiphon.Closed("user_stop", None, None)


@pytest.mark.parametrize(
    ("capacity", "put", "got"),
    [
        (4, [text("a"), FIRST, LISTENING, SECOND, text("b")], [text("a"), LISTENING, SECOND, text("b")]),
        (2, [text("a"), LISTENING, INTERRUPTED], [text("a"), INTERRUPTED]),
        (2, [CLOSED, text("a"), text("b")], [CLOSED, text("b")]),
    ],
    ids=["audio first", "then listening", "never the end"],
)
async def test_full_mailbox_drops_the_oldest_of_the_least_important(
    capacity: int, put: list[antiphon.Event], got: list[antiphon.Event]
) -> None:
    mailbox = EventMailbox(capacity=capacity)
    for event in put:
        mailbox.put(event)
    assert await rest(mailbox) == got
    assert mailbox.dropped == 1


async def test_error_comes_after_everything_that_was_received_before_it() -> None:
    mailbox = EventMailbox()
    mailbox.put(text("a"))
    mailbox.finish(antiphon.SessionClosed("connection_lost"))
    mailbox.finish()
    assert await mailbox.get() == text("a")
    for _ in range(2):
        with pytest.raises(antiphon.SessionClosed, match="connection_lost"):
            await mailbox.get()


async def test_full_mailbox_blocks_its_writer() -> None:
    mailbox: WaitingMailbox[int] = WaitingMailbox(capacity=1)
    await mailbox.put(1)
    second = asyncio.create_task(mailbox.put(2))
    await asyncio.sleep(0)
    assert not second.done()
    assert await mailbox.get() == 1
    await second
    assert await mailbox.get() == 2


async def test_discarded_mailbox_releases_waiting_writer() -> None:
    mailbox: WaitingMailbox[int] = WaitingMailbox(capacity=1)
    await mailbox.put(1)
    second = asyncio.create_task(mailbox.put(2))
    await asyncio.sleep(0)
    mailbox.discard()
    await asyncio.wait_for(second, PATIENCE_S)
