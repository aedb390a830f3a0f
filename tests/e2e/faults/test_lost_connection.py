"""Connections of clients that are lost in the middle of a conversation with the shipped model."""

import numpy as np

from tests.e2e.conftest import Recording, running_adapter
from tests.e2e.support.conversation import SILENCE_S, answer
from tests.failures.link import link_to


async def test_conversation_with_lost_connections_equals_an_undisturbed_one(
    worker: str, recordings: list[Recording]
) -> None:
    options = ("--resume-window-s", "60", "--silence-tail-units", "0")
    with running_adapter(worker, *options) as adapter:
        async with link_to(adapter.address.removeprefix("http://")) as link:
            recording = max(recordings[:10], key=lambda each: len(each.reply))
            undisturbed = await answer(adapter.address.replace("http", "ws"), recording, reconnect=True)
            assert undisturbed.text
            assert undisturbed.samples.size

            disturbed = await answer(
                f"ws://{link.address}", recording, link.cut, reconnect=True, each_unit=True
            )

            assert disturbed.text == undisturbed.text
            assert np.array_equal(disturbed.samples, undisturbed.samples)
            assert disturbed.resumed >= len(recording.units(SILENCE_S)) - 1
