"""Connections of clients that are lost in the middle of a conversation with the shipped model."""

import numpy as np

import antiphon
from tests.e2e.conftest import Recording, running_adapter
from tests.failures.link import Link, link_to

SILENCE_S = 5


async def answer(url: str, recording: Recording, link: Link | None) -> tuple[str, bytes, int]:
    """All that the model says, as text and as samples, and how often the conversation was resumed.

    With a `link` the connection is cut after each unit that is sent.
    """
    text, pieces, resumed = "", [np.zeros(0, np.float32)], 0
    units = recording.units(SILENCE_S)
    async with antiphon.connect(url) as client:
        async with client.duplex(seed=7, reconnect=True) as session:
            sent, told = 0, set[int | None]()
            async for event in session:
                match event:
                    case antiphon.TextDelta():
                        text += event.text
                        told.add(event.input_id and int(event.input_id.removeprefix("in-")))
                    case antiphon.AudioDelta():
                        pieces.append(event.samples)
                        told.add(event.input_id and int(event.input_id.removeprefix("in-")))
                    case antiphon.Listening() | antiphon.Interrupted():
                        told.add(event.input_id and int(event.input_id.removeprefix("in-")))
                    case antiphon.Resumed():
                        resumed += 1
                if len(told) == len(units):
                    break
                if sent == len(told) and sent < len(units) and not isinstance(event, antiphon.ConnectionLost):
                    await session.send_audio(units[sent])
                    sent += 1
                    if link is not None:
                        link.cut()
    return text, np.concatenate(pieces).tobytes(), resumed


async def test_conversation_with_lost_connections_equals_an_undisturbed_one(
    worker: str, recordings: list[Recording]
) -> None:
    options = ("--resume-window-s", "60", "--silence-tail-units", "0")
    with running_adapter(worker, *options) as adapter:
        async with link_to(adapter.address.removeprefix("http://")) as link:
            recording = max(recordings[:10], key=lambda each: len(each.reply))
            text, samples, _ = await answer(adapter.address.replace("http", "ws"), recording, None)
            assert text
            assert samples

            disturbed = await answer(f"ws://{link.address}", recording, link)

            assert disturbed[:2] == (text, samples)
            assert disturbed[2] >= len(recording.units(SILENCE_S)) - 1
