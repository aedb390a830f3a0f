"""Tools over `/v1/realtime?model=`: a causal model made on the spot, in a real worker, and real clients."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import validate

from tests.conformance.realtime_ga.test_foreign_sdks import AGENTS, needs_agents, run
from tests.conformance.realtime_ga.test_openai_sdk import MANUAL, Conversation, conversation
from tests.conformance.support.stack import Stack, running_stack, shipped_worker
from tests.inference_service.engine.support import tiny_caller
from tests.inference_service.engine.support.tiny_caller import CITY

MODEL = "caller"
CONTEXT = 2048
WEATHER = {"type": "function", "name": "weather", "description": "Of a city.", "parameters": CITY}
TIME = {
    "type": "function",
    "name": "time",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}

NAMED = {"type": "function", "name": "weather"}
RESULT = "Rain. " * 20


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Its weights are random: what it calls it was made to call."""
    folder = tiny_caller.save(
        tmp_path_factory.mktemp("models") / MODEL, max_position_embeddings=CONTEXT, num_hidden_layers=1
    )
    with shipped_worker(2, "--model", str(folder)) as worker, running_stack(worker) as stack:
        yield stack
        stack.wait_until(free_slots=2)
        assert "Traceback" not in stack.log.text + worker.log.text


async def offer(talk: Conversation, choice: Any) -> Any:
    """A session that writes, one call at a time; as the client is told it."""
    return await talk.update(
        output_modalities=["text"],
        audio=MANUAL,
        tools=[WEATHER, TIME],
        tool_choice=choice,
        parallel_tool_calls=False,
    )


async def give(talk: Conversation, call_id: str, output: str) -> None:
    """Send the output of a function call."""
    item: Any = {"type": "function_call_output", "call_id": call_id, "output": output}
    await talk.sdk.conversation.item.create(item=item)


async def test_a_named_call_climbs_the_ladder_and_its_result_is_answered(caller: Stack) -> None:
    async with conversation(caller, model=MODEL) as talk:
        session = await offer(talk, NAMED)
        assert [tool.name for tool in session.tools] == ["weather", "time"]
        assert (session.tool_choice.type, session.tool_choice.name) == ("function", "weather")
        await talk.type("What is the weather?")
        await talk.until("conversation.item.done")
        begin = len(talk.events)
        await talk.sdk.response.create()
        call = (await talk.until("response.output_item.done")).item
        # Trap 11: agents answer a call at once, whether its response is done or not.
        await give(talk, call.call_id, RESULT)
        first = (await talk.until("response.done")).response
        ladder = [event for event in talk.events[begin:] if getattr(event, "item", call).id == call.id]
        await talk.sdk.response.create(response={"tool_choice": "none", "max_output_tokens": 16})
        second = (await talk.until("response.done")).response

    kinds = [event.type for event in ladder]
    deltas = kinds.count("response.function_call_arguments.delta")
    assert kinds == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        *["response.function_call_arguments.delta"] * deltas,
        "response.function_call_arguments.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    added, whole, done = ladder[1], ladder[-4], ladder[-2]
    assert deltas > 1
    assert (added.item.type, added.item.name, added.item.arguments) == ("function_call", "weather", "")
    assert (added.item.status, done.item.status) == ("in_progress", "completed")
    assert added.item.call_id == whole.call_id == call.call_id != ""
    written = "".join(event.delta for event in ladder if event.type.endswith("arguments.delta"))
    assert (whole.name, whole.arguments, call.arguments) == ("weather", written, written)
    validate(json.loads(written), CITY)
    assert (first.status, first.output) == ("completed", [call])
    outputs = [event.item for event in talk.of("conversation.item.done") if "output" in event.item.type]
    assert [(item.call_id, item.output) for item in outputs] == [(call.call_id, RESULT)]
    # Random weights say anything, and seldom an end: but no tool is called.
    assert second.status in ("completed", "incomplete")
    assert {item.type for item in second.output} <= {"message"}
    # Each character is a token of this model, and of the tools it is told nothing more.
    assert len(RESULT) + len(written) < second.usage.input_tokens < first.usage.input_tokens


async def test_any_tool_that_is_called_is_one_that_was_offered(caller: Stack) -> None:
    async with conversation(caller, model=MODEL) as talk:
        await offer(talk, "required")
        await talk.type("Hello")
        await talk.sdk.response.create()
        done = (await talk.until("response.done")).response

    (call,) = done.output
    assert (done.status, call.type) == ("completed", "function_call")
    validate(json.loads(call.arguments), {"weather": CITY, "time": {"type": "object"}}[call.name])


async def test_a_call_that_is_cut_off_is_never_completed(caller: Stack) -> None:
    async with conversation(caller, model=MODEL) as talk:
        await offer(talk, NAMED)
        await talk.type("Hello")
        await talk.sdk.response.create(response={"max_output_tokens": 50})
        done = (await talk.until("response.done")).response

    assert (done.status, done.status_details.reason) == ("incomplete", "max_output_tokens")
    assert not talk.of("response.function_call_arguments.done")
    assert {event.item.status for event in talk.of("response.output_item.done")} == {"incomplete"}


@needs_agents
def test_an_agent_runs_the_function_that_is_called(caller: Stack) -> None:
    """Its settings name the choice; the function itself takes it back, or it would be called for ever."""
    url = caller.url(f"/v1/realtime?model={MODEL}")

    told = run(str(AGENTS / "bin/python"), "agent_tools.py", url, "none", MODEL)

    assert told["errors"] == []
    ((city, days),) = told["called"]
    assert city in ("Bern", "Rome")
    assert days in (1, 2, 3)
    (call,) = [item for item in told["history"] if item["type"] == "function_call"]
    assert (call["name"], call["status"], call["output"]) == ("forecast", "completed", f"Rain in {city}.")
    assert json.loads(call["arguments"]) == {"city": city, "days": days}
    assert told["events"].count("response.done") == 2
