"""A spoken question in over the public WebSocket, a spoken answer out, through real processes."""

import asyncio

import pytest

import antiphon
from antiphon.protocol.events import AudioDelta, Listening, TextDelta, TurnEnd
from tests.e2e.conftest import SLOTS, Recording, readiness, running_adapter, running_worker, until_all_free

SILENCE_S = 7


async def answer(url: str, recording: Recording, seed: int) -> tuple[str, int]:
    text, samples = "", 0
    units = recording.units(SILENCE_S)
    async with (
        antiphon.connect(url) as client,
        client.duplex(instructions="You are a helpful assistant.", seed=seed) as session,
    ):
        sent, heard = 0, 0
        async for event in session:
            match event:
                case TextDelta(text=said):
                    text += said
                case AudioDelta(samples=pcm):
                    samples += len(pcm)
                    heard += 1
                case Listening():
                    heard += 1
                case TurnEnd():
                    pass
            if heard == len(units):
                break
            if sent <= heard and sent < len(units):
                await session.send_audio(units[sent])
                sent += 1
    return " ".join(text.split()), samples


@pytest.mark.long
async def test_ten_public_conversations_at_once_are_each_what_they_are_alone(
    recordings: list[Recording],
) -> None:
    """With the encoder alone: a recogniser that is busy with others is not waited for."""
    chosen = recordings[:10]
    with (
        running_worker("--ear", "fast", slots=len(chosen)) as worker,
        running_adapter(worker.address) as adapter,
    ):
        url = adapter.address.replace("http", "ws")
        alone = [await answer(url, r, seed) for seed, r in enumerate(chosen)]
        together = await asyncio.gather(*(answer(url, r, seed) for seed, r in enumerate(chosen)))
    assert together == alone
    assert sum(samples for _, samples in alone) > 0


async def test_readiness_counts_the_slots(adapter: str) -> None:
    await until_all_free(adapter)
    ready = await asyncio.to_thread(readiness, adapter)
    assert ready["ready"] is True
    assert ready["slots"] == SLOTS
