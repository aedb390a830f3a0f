"""Spoken conversations over `/v1/live/sessions`: the checkpoint of the package and OpenAI's own client."""

import asyncio
import base64
import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.live import OutputAudioDeltaEvent, OutputTranscriptDeltaEvent

from tests.conformance.support.recordings import recording, reply_to
from tests.conformance.support.stack import Stack
from tests.support.patience import PATIENCE_S
from ws_adapter.protocol.live.sound import Format

PAGE = Path(__file__).parents[3] / "docs/live.md"
PIECE_S = 0.02
WAIT_S = 8.0
"""Behind a question, until it is asked again."""
HERE = "http://localhost:8006"

FORMATS = [
    Format("audio/pcm", 16_000),
    Format("audio/pcm", 24_000),
    Format("audio/pcmu", 8_000),
    Format("audio/pcma", 8_000),
]


def question(name: str, format: Format) -> bytes:
    """A recording in the format of a session."""
    return format.encode(recording(name, format.rate_hz))


def start(format: Format) -> dict[str, Any]:
    audio = {"format": {"type": format.encoding, "rate": format.rate_hz}}
    return {"type": "session.start", "session": {"model": "antiphon-mini", "audio": audio}}


async def converse(stack: Stack, name: str, format: Format) -> tuple[str, bytes, list[Any]]:
    """Asks in real time, in pieces of 20 ms, until the answer is over: text, sound, and all other events.

    The model draws its words: a question that was answered with others is asked again.
    """
    spoken, reply = question(name, format), reply_to(name)
    text, heard, others = "", b"", []
    is_answered = asyncio.Event()
    client = AsyncOpenAI(api_key="none", base_url=f"{stack.address}/v1")
    async with asyncio.timeout(PATIENCE_S), client.live.connect() as live:

        async def ask() -> None:
            """Ends the session once the answer has come."""
            loop = asyncio.get_running_loop()
            due, size = loop.time(), round(format.bytes_per_s * PIECE_S)
            silence = format.silence(size)
            again = (len(spoken) // size + round(WAIT_S / PIECE_S)) * size
            for at in itertools.count(0, size):
                if at >= len(spoken) and is_answered.is_set():
                    break
                audio = base64.b64encode(spoken[at % again :][:size] or silence).decode()
                await live.send({"type": "session.input_audio.append", "audio": audio})
                due += PIECE_S
                await asyncio.sleep(max(0.0, due - loop.time()))
            await live.send({"type": "session.close"})

        await live.send(start(format))
        others.append(await live.recv())
        asking = asyncio.create_task(ask())
        while others[-1].type != "session.closed":
            match event := await live.recv():
                case OutputAudioDeltaEvent():
                    heard += base64.b64decode(event.delta)
                case OutputTranscriptDeltaEvent():
                    text += event.delta
                    if text.strip().endswith(reply):
                        is_answered.set()
                case _:
                    others.append(event)
        await asking
    return text, heard, others


async def test_a_spoken_question_is_answered_aloud_in_every_format(shipped: Stack) -> None:
    """All at once: a conversation takes its ten seconds."""
    held = await asyncio.gather(*(converse(shipped, "how_are_you", format) for format in FORMATS))

    for format, (text, heard, others) in zip(FORMATS, held, strict=True):
        check(format, text, heard, others)


def check(format: Format, text: str, heard: bytes, others: list[Any]) -> None:
    """The right answer was heard, behind the question."""
    assert text.strip().endswith(reply_to("how_are_you"))
    samples = format.decode(heard)
    assert np.sqrt(np.mean(np.square(samples))) > 0.01
    loud = np.abs(samples) > 0.05
    assert loud.any()
    assert not loud[: format.rate_hz].any(), "nothing is said before the question is over"
    assert others[0].type == "session.started"
    assert others[-1].type == "session.closed"
    assert others[-1].reason == "close_requested"


def test_the_client_for_programs_that_wait_is_served_too(shipped: Stack) -> None:
    client = OpenAI(api_key="none", base_url=f"{shipped.address}/v1")

    with client.live.connect() as live:
        live.send(start(FORMATS[0]))
        started = live.recv()
        live.send({"type": "session.close", "event_id": "over"})
        rest = []
        while not rest or rest[-1].type != "session.closed":
            rest.append(live.recv())

    assert started.type == "session.started"
    assert rest[-1].type == "session.closed"


@pytest.mark.long
def test_the_example_of_the_page_runs(shipped: Stack) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert HERE in example

    done = subprocess.run(
        [sys.executable, "-c", example.replace(HERE, shipped.address)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=PAGE.parents[1],
    )

    assert (done.returncode, done.stdout.strip()) == (0, reply_to("how_are_you")), done.stderr
