"""`POST /v1/chat/completions` with OpenAI's SDK: a real adapter, and a worker that says what the test wants."""

import asyncio
import base64
import io
import json
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from inference_service.api.setups import Mode
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, hang, running_worker, write
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import Stage, running_adapter, until

ASK: Any = [{"role": "user", "content": "Name a prime."}]
PATH = "/v1/chat/completions"


@asynccontextmanager
async def served(engine: ScriptedEngine | None = None, slots: int = 1, **options: Any) -> AsyncIterator[Stage]:
    engine = engine or ScriptedEngine(write("Sev", "en."), slots=slots, info=EVERYTHING, repeat=True)
    async with running_worker(engine, slots=slots) as worker:
        async with running_adapter(worker.address, **options) as stage:
            yield stage
            await stage.until(free_slots=slots)


def client_of(stage: Stage, key: str = "none") -> AsyncOpenAI:
    return AsyncOpenAI(
        api_key=key, base_url=f"{stage.address}/v1", max_retries=0, timeout=PATIENCE_S
    )


async def test_whole_answer_is_a_chat_completion() -> None:
    async with served() as stage, client_of(stage) as client:
        answer = await client.chat.completions.create(model="scripted", messages=ASK)

        assert answer.choices[0].message.content == "Seven."
        assert answer.choices[0].finish_reason == "stop"
        assert answer.model == "scripted"
        assert answer.usage is not None
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        assert answer._request_id


async def test_stream_has_the_answer_in_pieces_and_the_usage() -> None:
    async with served() as stage, client_of(stage) as client:
        stream = await client.chat.completions.create(
            model="scripted", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]

        said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(said) == "Seven."
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].usage is not None


async def test_synchronous_client_is_answered() -> None:
    def ask(address: str) -> str | None:
        with OpenAI(api_key="none", base_url=f"{address}/v1", max_retries=0) as client:
            return client.chat.completions.create(model="scripted", messages=ASK).choices[0].message.content

    async with served() as stage:
        assert await asyncio.to_thread(ask, stage.address) == "Seven."
