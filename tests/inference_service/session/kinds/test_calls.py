"""Chats with tools: any model can be made to call one, and calls are told apart from what is said."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jsonschema import validate

from inference_service.checkpoints import causal
from inference_service.families.causal_runtime import model_info
from inference_service.interface.engine import End, Finish
from inference_service.interface.setups import ChatMessage, Tool, ToolCall, ToolMode, Tools, UnitOverrides
from inference_service.tools.grammar import Mask
from tests.inference_service.engine.support import tiny_caller
from tests.inference_service.engine.support.calling import TIME, WARM, WEATHER, Chat, Chats, required
from tests.inference_service.engine.support.tiny_caller import CITY
from tests.support.long import seeds

BERN = '{"city": "Bern", "days": 3, "unit": "C"}'
CALL = f'\n<tool_call>\n{{"name": "weather", "arguments": {BERN}}}\n</tool_call>'
AUTO = Tools((WEATHER,))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("callers")

    def folder(family: str) -> Path:
        return root / family if (root / family).exists() else tiny_caller.save(root / family, family)

    return folder


@pytest.fixture(scope="module", params=["hermes", "llama"])
def chats(request: pytest.FixtureRequest, folders: Callable[[str], Path]) -> Chats:
    return Chats.of(folders(request.param))


@pytest.fixture
def open_chat(chats: Chats) -> Iterator[Callable[..., Chat]]:
    yield chats.open
    chats.close()


@pytest.mark.parametrize("seed", seeds(0, 1, 2))
def test_required_call_with_random_weights_is_valid(open_chat: Callable[..., Chat], seed: int) -> None:
    told = open_chat(seed=seed).ask("Weather?", tools=required())
    ((name, arguments, complete),) = told.calls
    assert (name, complete) == ("weather", True)
    validate(json.loads(arguments), CITY)
    assert (told.text, told.thinking) == ("", "")
    assert (told.done.end, told.done.finish) == (End.TURN, Finish.EOS)


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_the_named_tool_is_called(open_chat: Callable[..., Chat], temperature: float) -> None:
    chat = open_chat(sampling=replace(WARM, temperature=temperature))
    told = chat.ask("Hello", tools=required(WEATHER, TIME, named="time"))
    assert told.calls == [("time", "{}", True)]


@pytest.mark.sample("llama")
def test_any_of_the_tools_may_be_the_required_one(open_chat: Callable[..., Chat]) -> None:
    tools = [replace(TIME, name=name) for name in "abcd"]
    chat = open_chat()
    names = {chat.ask("Hi", tools=required(*tools)).calls[0][0] for _ in range(8)}
    assert len(names) > 1
    assert names <= set("abcd")


@pytest.mark.sample("hermes")
def test_several_calls_are_required_where_there_may_be(open_chat: Callable[..., Chat]) -> None:
    tools = required(TIME, replace(TIME, name="date"), are_parallel=True)
    chat = open_chat(sampling=replace(WARM, temperature=2.0))
    counts = set()
    for _ in range(6):
        told = chat.ask("Hi", tools=tools, overrides=UnitOverrides(max_new_tokens=600))
        complete = [call for call in told.calls if call[2]]
        assert all(name in ("time", "date") and arguments == "{}" for name, arguments, _ in complete)
        assert told.text == ""
        counts.add(min(2, len(complete)))
    assert counts == {1, 2}


def test_a_call_that_needs_more_tokens_than_there_are_is_cut_off(open_chat: Callable[..., Chat]) -> None:
    told = open_chat().ask("Hi", tools=required(), overrides=UnitOverrides(max_new_tokens=40))
    assert (told.done.finish, told.done.usage.output_text_tokens) == (Finish.LENGTH, 40)
    assert not any(complete for *_, complete in told.calls)


def test_the_session_goes_on_behind_a_call(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat()
    (called,) = chat.ask("Weather?", tools=required()).calls
    call = ToolCall("call_1", "weather", json.loads(called[1]))
    told = chat.ask(
        "Weather?",
        ChatMessage("assistant", (), (call,)),
        ChatMessage("tool", ("Rain.",), call_id="call_1"),
        tools=replace(AUTO, mode=ToolMode.NONE),
    )
    assert (told.done.end, told.calls) == (End.TURN, [])


def test_ids_of_calls_are_all_different(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat()
    told = [piece.call for _ in range(3) for piece in chat.ask("Hi", tools=required(TIME)).pieces]
    ids = [call.id for call in told if call is not None and call.id]
    assert len(set(ids)) == 3
    assert all(len(it) <= 64 and it.isascii() for it in ids)


@pytest.mark.sample("hermes")
def test_neighbours_change_nothing_of_a_required_call_nor_it_of_them(chats: Chats) -> None:
    """Constrained and free sessions side by side: each says what it says alone."""
    settings: list[dict[str, Any]] = [
        {"tools": required()},
        {},
        {"tools": required(TIME, WEATHER, are_parallel=True)},
    ]

    def talk(indices: list[int]) -> list[Any]:
        opened = [chats.open(seed=10 + i) for i in indices]
        numbers = [
            chat.send("Hello " * (i + 1), **settings[i]) for chat, i in zip(opened, indices, strict=True)
        ]
        chats.run()
        told = [chat.told(number) for chat, number in zip(opened, numbers, strict=True)]
        chats.close()
        return [(it.text, it.calls, it.done.usage.output_text_tokens) for it in told]

    alone = [talk([i])[0] for i in range(3)]

    assert talk([0, 1, 2]) == alone
    assert talk([2, 1, 0]) == alone[::-1]


@pytest.fixture
def chat(folders: Callable[[str], Path]) -> Iterator[Chat]:
    """With a model whose every word is prescribed."""
    chats = Chats.of(folders("hermes"))
    yield chats.open()
    chats.close()


def test_nothing_of_a_call_is_among_the_tokens_of_the_text(chat: Chat) -> None:
    chat.say("Zürich: " + CALL + "\n So it is 🌧." + CALL)
    told = chat.ask("Weather?", tools=AUTO, overrides=UnitOverrides(max_new_tokens=300))
    ids = [token for piece in told.pieces for token in piece.token_ids]
    assert told.text == "Zürich:So it is 🌧."
    assert tiny_caller.tokenizer().decode(ids) == "Zürich:So it is 🌧."
    assert told.calls == [("weather", BERN, True)] * 2
    assert (told.done.end, told.done.finish) == (End.TURN, Finish.EOS)
    assert len([piece for piece in told.pieces if piece.call is not None]) > 20, "arguments come in pieces"


def test_an_answer_of_one_call_ends_with_it(chat: Chat) -> None:
    told = chat.say(CALL + CALL).ask("Weather?", tools=replace(AUTO, are_parallel=False))
    assert told.calls == [("weather", BERN, True)]
    assert (told.done.end, told.done.finish) == (End.TURN, Finish.EOS)


def test_without_tools_what_looks_like_a_call_is_text(chat: Chat) -> None:
    assert chat.say(CALL).ask("Weather?").text == CALL
    assert chat.say(CALL).ask("Weather?", tools=replace(AUTO, mode=ToolMode.NONE)).text == CALL


def test_thoughts_are_apart_where_they_are_asked_for(chat: Chat) -> None:
    thought = "<think>\nHm.\n</think>\n\nSo."
    told = chat.say(thought).ask("Why?", thinking=True)
    assert (told.thinking, told.text) == ("Hm.", "So.")
    assert [token for piece in told.pieces for token in piece.token_ids] == tiny_caller.tokenizer().encode(
        "So."
    )
    assert chat.say(thought).ask("Why?").text == thought


def test_a_stop_string_is_one_of_the_text_alone(chat: Chat) -> None:
    stops = UnitOverrides(stop=("Bern", "END"))
    told = chat.say("EN" + CALL + "In Bern").ask("Weather?", tools=AUTO, overrides=stops)
    assert told.text == "ENIn "
    assert told.calls == [("weather", BERN, True)]
    assert told.done.finish is Finish.STOP


@pytest.mark.parametrize(
    "wrong", [CALL.replace('"city"', "city"), CALL.replace("weather", "news"), CALL[:-30]]
)
def test_a_call_written_wrong_fails_its_turn_alone(chat: Chat, wrong: str) -> None:
    told = chat.say("Well." + wrong).ask("Weather?", tools=AUTO)
    assert (told.text, told.done.end, told.done.finish) == ("Well.", End.FAILED, None)
    assert told.done.failure is not None
    assert (told.done.failure.reason, told.done.failure.retryable) == ("INFERENCE_FAILED", True)
    assert not any(complete for *_, complete in told.calls)
    assert chat.say(CALL).ask("Weather?", tools=AUTO).calls == [("weather", BERN, True)]


def test_a_llama_tag_is_seen_though_it_is_no_text(folders: Callable[[str], Path]) -> None:
    chat = Chats.of(folders("llama")).open()
    told = chat.say('Hm.<|python_tag|>{"name": "time", "parameters": {}}').ask("Now?", tools=Tools((TIME,)))
    assert (told.text, told.calls) == ("Hm.", [("time", "{}", True)])


def test_a_required_call_may_be_thought_about(chat: Chat) -> None:
    told = chat.say("<think>\nHm.\n</think>", ends=False).ask("Why?", tools=required(), thinking=True)
    assert (told.thinking, told.text) == ("Hm.", "")
    assert [(name, complete) for name, _, complete in told.calls] == [("weather", True)]


@pytest.mark.parametrize(
    ("family", "can"), [("hermes", True), ("llama", True), ("another", False), ("none", False)]
)
def test_known_way_of_calling_takes_tools(folders: Callable[[str], Path], family: str, can: bool) -> None:
    loaded = causal.load(folders(family), torch.device("cpu"), torch.float32)
    assert model_info(loaded, 64).calls_tools is can


def test_a_thought_that_the_prompt_begins_is_one(folders: Callable[[str], Path]) -> None:
    chat = Chats.of(folders("opens a thought")).open()
    told = chat.ask("Hi", thinking=True)
    assert told.thinking
    assert "<think>" not in told.thinking + told.text


def test_a_schema_that_cannot_be_enforced_is_refused_by_its_field(open_chat: Callable[..., Chat]) -> None:
    chat, tools = open_chat(), (TIME, Tool("bad", "", {"type": "object", "not": {"required": ["x"]}}))
    told = chat.ask("Hi", tools=required(*tools))
    failure = told.prefilled.failure
    assert failure is not None
    assert (failure.reason, failure.field) == ("PARAMS_INVALID", "turn.tools[1].parameters_json")
    assert told.done.end is End.FAILED
    assert chat.ask("Hi", tools=required(*tools, named="time")).calls == [("time", "{}", True)]
    assert (
        chat.ask("Hi", tools=Tools(tools), overrides=UnitOverrides(max_new_tokens=2)).prefilled.failure
        is None
    )


class Broken:
    """A constraint that has come to its end."""

    first = Mask(np.zeros(10, np.int32), problem="too many items")


def test_a_constraint_that_breaks_fails_its_turn_alone(chats: Chats, open_chat: Callable[..., Chat]) -> None:
    chat, neighbour = open_chat(), open_chat(seed=2)
    broken, number = chat.send("Hi", tools=required()), neighbour.send("Hi", tools=required())
    unit = chat.session.queue.first
    assert unit is not None
    unit.input = replace(unit.input, constraint=Broken())
    chats.run()
    done = chat.told(broken).done
    assert done.failure is not None
    assert (done.end, done.failure.reason, done.failure.field) == (End.FAILED, "PARAMS_INVALID", "turn.tools")
    assert neighbour.told(number).calls[0][2]
    assert chat.ask("Hi", tools=required(TIME)).calls == [("time", "{}", True)]
