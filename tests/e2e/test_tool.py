"""OpenAI's SDK offers the shipped model a light: typed, spoken and aloud, and when the lamp is broken."""

import base64
import io
import json
import wave
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI

from antiphon_training.corpus.listener import Listener
from antiphon_training.domains.tool import schema
from tests.e2e.conftest import FOLDER
from tests.e2e.test_completions import MODEL, base64_of, client_of

SET_LIGHT: Any = schema("set_light", "Turn the light on or off.", {"state": ["on", "off"]})
OTHER: Any = schema("get_weather", "Weather of a city.", {"city": []})
TYPED = {"role": "user", "content": "Turn the light on, please."}
SPOKEN = {
    "role": "user",
    "content": [
        {
            "type": "input_audio",
            "input_audio": {"data": base64_of((FOLDER / "light.wav").read_bytes()), "format": "wav"},
        }
    ],
}


@pytest.fixture
async def sdk(adapter: str) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(adapter) as client:
        yield client


async def answer(sdk: AsyncOpenAI, messages: list[Any], **asked: Any) -> Any:
    asked = {"tools": [SET_LIGHT], **asked}
    done = await sdk.chat.completions.create(model=MODEL, temperature=0, messages=messages, **asked)
    return done.choices[0]


def called(choice: Any) -> tuple[str, Any]:
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    return call.function.name, json.loads(call.function.arguments)


def history(request: Any, choice: Any, result: str) -> list[Any]:
    (call,) = choice.message.tool_calls
    return [
        request,
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": result},
    ]


@pytest.mark.parametrize("request_", [TYPED, SPOKEN], ids=["typed", "spoken"])
@pytest.mark.parametrize("tools", [[SET_LIGHT], [OTHER, SET_LIGHT]], ids=["alone", "beside another"])
async def test_light_is_called_and_its_result_is_answered(
    sdk: AsyncOpenAI, request_: Any, tools: list[Any]
) -> None:
    choice = await answer(sdk, [request_], tools=tools)
    assert called(choice) == ("set_light", {"state": "on"})
    told = await answer(sdk, history(request_, choice, "ok"), tools=tools)
    assert told.message.content == "the light is on"


async def test_failed_call_is_answered_with_what_still_holds(sdk: AsyncOpenAI) -> None:
    choice = await answer(sdk, [TYPED])
    told = await answer(sdk, history(TYPED, choice, '{"error": "not connected"}'))
    assert told.message.content == "sorry the light is off"


async def test_result_is_said_aloud(sdk: AsyncOpenAI) -> None:
    aloud: dict[str, Any] = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
    choice = await answer(sdk, [SPOKEN], **aloud)
    assert called(choice) == ("set_light", {"state": "on"})

    told = await answer(sdk, history(SPOKEN, choice, "ok"), **aloud)
    with wave.open(io.BytesIO(base64.b64decode(told.message.audio.data))) as file:
        sound = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert Listener().hear(sound.astype(np.float32) / 32768) == told.message.audio.transcript
    assert told.message.audio.transcript == "the light is on"


@pytest.mark.parametrize(
    ("question", "asked", "answered"),
    [
        ("What is your name?", {}, "my name is antiphon"),
        (TYPED["content"], {"tools": [OTHER]}, "the light is on"),
        (TYPED["content"], {"tool_choice": "none"}, "the light is on"),
    ],
    ids=["none of the tools", "another", "no tool"],
)
async def test_question_without_matching_tool_is_answered_in_text(
    sdk: AsyncOpenAI, question: str, asked: Any, answered: str
) -> None:
    told = await answer(sdk, [{"role": "user", "content": question}], **asked)
    assert (told.finish_reason, told.message.content) == ("stop", answered)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=["any", "by name"]
)
async def test_tool_choice_forces_call_for_unrelated_question(sdk: AsyncOpenAI, choice: Any) -> None:
    asked = {"tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 400}
    told = await answer(sdk, [{"role": "user", "content": "Hello!"}], tools=[SET_LIGHT, OTHER], **asked)
    name, arguments = called(told)
    assert name == "get_weather" or choice == "required"
    assert arguments.keys() == {"set_light": {"state"}, "get_weather": {"city"}}[name]
