"""Chat as a user meets it: the checkpoint of the package behind both doors."""

import asyncio
import base64
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conformance.support.chat_words import CHAT, CLOSE, REALTIME, begin
from tests.conformance.support.client import Event
from tests.conformance.support.stack import Stack
from tests.support.patience import PATIENCE_S

LONG_S = 60.0
"""The longest wait for one event: a model is at work, on whatever machine this is."""

PROGRAM = Path(__file__).parents[2] / "data/chat_mode/client.txt"
PAGE = Path(__file__).parents[3] / "docs/chat.md"


def asked(text: str, **fields: object) -> Event:
    drawn = {"temperature": 0, "max_new_tokens": 32}
    return {"messages": [{"role": "user", "content": text}], "generation": drawn, **fields}


async def test_written_answer(shipped: Stack) -> None:
    async with shipped.client(CHAT) as client:
        await client.send(asked("what is two plus three?", tts={"enabled": False}))
        events = await client.until("done", LONG_S)

    *chunks, done = events[1:]
    assert events[0]["type"] == "prefill_done"
    assert events[0]["input_tokens"] == done["input_tokens"] > 5
    assert "".join(chunk["text_delta"] for chunk in chunks) == done["text"] != ""
    assert {chunk["audio_data"] for chunk in chunks} == {None}
    assert 0 < done["generated_tokens"] <= 32


async def test_spoken_answer(shipped: Stack) -> None:
    async with shipped.client(CHAT) as client:
        await client.send(asked("what is two plus three?"))
        events = await client.until("done", LONG_S)

    audio = b"".join(base64.b64decode(event.get("audio_data") or "") for event in events[:-1])
    samples = np.frombuffer(audio, "<f4")
    assert samples.size > 2400
    assert np.isfinite(samples).all()
    assert 0.01 < np.abs(samples).max() <= 1.0
    assert events[-1]["audio_data"] is None


async def test_turns_are_repeatable_and_independent(shipped: Stack) -> None:
    answers = []
    async with shipped.client(REALTIME) as client:
        await begin(client)
        for text in ("what is two plus three?", "what time is it?", "what is two plus three?"):
            await client.send({"type": "input.append", "input": asked(text, streaming=False)})
            answers.append((await client.until("response.done", LONG_S))[-1])
        await client.send(CLOSE)
        await client.end()

    assert answers[0]["text"] == answers[2]["text"] != ""
    assert answers[0]["usage"] == answers[2]["usage"]


async def test_conversation_that_does_not_fit(shipped: Stack) -> None:
    async with shipped.client(CHAT) as client:
        await client.send(asked("seven " * 20_000))
        events, code = await client.end()

    assert (events[-1]["code"], code) == ("invalid_payload", 1008)


async def test_client_that_leaves_frees_its_slot_within_a_second(shipped: Stack) -> None:
    slots = (await shipped.request("/ready"))[1]["slots"]
    async with shipped.client(CHAT) as client:
        await client.send({**asked("count to one hundred"), "generation": {"max_new_tokens": 4096}})
        await client.next(LONG_S)
        client.vanish()
    await shipped.until(free_slots=slots)


async def run(*arguments: str) -> list[str]:
    """The lines that a program prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE_S):
        said, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return said.decode().splitlines()


async def test_printed_client_runs_unchanged(shipped: Stack) -> None:
    program, last = PROGRAM.read_text(), "asyncio.run(chat_streaming())\n"
    assert program.endswith(last)
    called = f"asyncio.run(chat_streaming({shipped.url(CHAT)!r}, None))"

    said = await run("-c", program.removesuffix(last) + called)

    assert re.fullmatch(r"Prefill done, \d+ input tokens", said[0])
    assert any(line.startswith("Final: ") and len(line) > 8 for line in said)
    assert re.fullmatch(r"Received \d+\.\d+s of audio", said[-1])


@pytest.mark.parametrize("number", range(2))
async def test_programs_of_the_documentation_run(shipped: Stack, number: int) -> None:
    program = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[number]
    assert "ws://localhost:8006" in program
    assert len(await run("-c", program.replace("ws://localhost:8006", shipped.url("")))) == 2
