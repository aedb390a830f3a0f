"""The words of the user in OpenAI's Live: the checkpoint of the package and OpenAI's SDK for Python."""

import asyncio
import base64
import itertools
from typing import Any

from openai import AsyncOpenAI
from openai.types.live import InputTranscriptDeltaEvent, SessionStartedEvent

from tests.conformance.support.client import meanwhile
from tests.conformance.support.recordings import pcm16, recording
from tests.conformance.support.stack import Stack
from tests.support.patience import PATIENCE_S

RATE = 16_000
PIECE = RATE // 50
"""Samples of 20 ms."""
LEAD_S = 1.0
"""Silence before the question."""
START: Any = {
    "type": "session.start",
    "session": {"model": "antiphon-mini", "audio": {"format": {"type": "audio/pcm", "rate": RATE}}},
}


async def speak(live: Any, name: str) -> None:
    """Silence, a recording and silence again, as fast as they are heard, until cancelled."""
    data = bytes(round(LEAD_S * RATE) * 2) + pcm16(recording(name))
    loop = asyncio.get_running_loop()
    due = loop.time()
    for at in itertools.count(0, 2 * PIECE):
        piece = data[at : at + 2 * PIECE].ljust(2 * PIECE, b"\0")
        audio = base64.b64encode(piece).decode()
        await live.send({"type": "session.input_audio.append", "audio": audio})
        due += PIECE / RATE
        await asyncio.sleep(max(0.0, due - loop.time()))


async def test_input_transcript_has_the_words_of_a_question_and_when_they_were_said(shipped: Stack) -> None:
    length_ms = len(recording("counting")) * 1000 // RATE
    client = AsyncOpenAI(api_key="none", base_url=f"{shipped.address}/v1")
    heard: list[InputTranscriptDeltaEvent] = []
    async with asyncio.timeout(PATIENCE_S), client.live.connect() as live:
        await live.send(START)
        assert isinstance(await live.recv(), SessionStartedEvent)
        async with meanwhile(speak(live, "counting")):
            while "eight" not in "".join(event.delta for event in heard):
                event = await live.recv()
                assert event.type not in ("error", "session.closed"), event
                if isinstance(event, InputTranscriptDeltaEvent):
                    InputTranscriptDeltaEvent.model_validate(event.model_dump())
                    heard.append(event)

    assert {"count", "eight"} <= set("".join(event.delta for event in heard).split())
    times = [(event.start_ms, event.end_ms) for event in heard]
    assert times == sorted(times)
    assert all(at % 200 == 0 for time in times for at in time)
    assert LEAD_S * 1000 - 600 <= times[0][0] < times[-1][1] <= LEAD_S * 1000 + length_ms + 1200
