"""The shipped model calls a light over `/v1/realtime?model=`: typed and spoken, through OpenAI's SDK."""

import json
from typing import Any

import pytest

from antiphon_training.domains.tool import schema
from tests.conformance.realtime_ga.test_openai_sdk import MANUAL, Conversation, conversation, question
from tests.conformance.support.stack import Stack

SET_LIGHT = {
    "type": "function",
    **schema("set_light", "Turn the light on or off.", {"state": ["on", "off"]})["function"],
}


async def respond(talk: Conversation) -> Any:
    """Ask for a response; return its only item."""
    await talk.sdk.response.create()
    done = (await talk.until("response.done")).response
    assert done.status == "completed"
    (item,) = done.output
    return item


@pytest.mark.parametrize("is_spoken", [False, True], ids=["typed", "spoken"])
async def test_light_is_called_and_the_result_is_said(shipped: Stack, is_spoken: bool) -> None:
    async with conversation(shipped) as talk:
        session = await talk.update(audio=MANUAL, tools=[SET_LIGHT])
        assert [tool.name for tool in session.tools] == ["set_light"]
        if is_spoken:
            await talk.say(question("light"))
            await talk.sdk.input_audio_buffer.commit()
        else:
            await talk.type("now switch on the light")
        call = await respond(talk)
        assert (call.type, call.name, json.loads(call.arguments)) == (
            "function_call",
            "set_light",
            {"state": "on"},
        )
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "ok"}
        await talk.sdk.conversation.item.create(item=result)
        answer = await respond(talk)

    assert answer.content[0].transcript == "the light is on"
    assert len(talk.of("response.output_audio.delta")) > 0


async def test_tools_make_the_server_find_the_turns_and_taking_them_back_gives_the_model_its_own(
    shipped: Stack,
) -> None:
    semantic = {"input": {"turn_detection": {"type": "semantic_vad"}}}
    async with conversation(shipped) as talk:
        told = await talk.update(audio=semantic, tools=[SET_LIGHT])
        assert told.audio.input.turn_detection.type == "server_vad"
        told = await talk.update(audio=semantic, tools=[])
        assert told.audio.input.turn_detection.type == "semantic_vad"
