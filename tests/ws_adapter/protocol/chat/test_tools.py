"""Tools in both chat dialects: what a client offers and feeds back, and how it is told of calls."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.contract import MAX_CALL_BYTES, MAX_SCHEMA_BYTES, MAX_TOOLS
from tests.ws_adapter.support.chat_conversation import USER, ChatJar, Jar, RealtimeChatJar, append, request
from tests.ws_adapter.support.conversation import CATALOGUE, Event
from tests.ws_adapter.support.pools import catalogue as catalogue_of
from ws_adapter.protocol.core.signals import CallDelta, Finish, Piece, UnitEnd
from ws_adapter.protocol.core.turn import Call, Message, Named, Tool, Turn

ABLE = catalogue_of(voices={"amber"}, calls_tools=True)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city.", "parameters": CITY},
}
TIME = {"type": "function", "function": {"name": "time"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
CALLED = {"role": "assistant", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "Rain."}
BERN = [
    CallDelta(0, "call_a", "weather"),
    CallDelta(0, arguments='{"city": '),
    CallDelta(0, arguments='"Bern"}'),
    CallDelta(0, complete=True),
]


def plain(catalogue: Any = ABLE) -> Jar:
    """`/ws/chat`, which takes one request."""
    return ChatJar(catalogue)


def realtime(catalogue: Any = ABLE) -> Jar:
    jar = RealtimeChatJar(catalogue)
    jar.activate()
    return jar


Dialect = tuple[Callable[..., Jar], Callable[..., Event], str]
DIALECTS: dict[str, Dialect] = {
    "/ws/chat": (plain, request, ""),
    "/v1/realtime?mode=chat": (realtime, append, "input."),
}


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return DIALECTS[request.param]


def ran(dialect: Dialect, *messages: Event, catalogue: Any = ABLE, **fields: Any) -> Jar:
    """A turn that has reached its worker."""
    make, ask, _ = dialect
    jar = make(catalogue)
    jar.client(ask(*messages, **fields))
    if isinstance(jar, ChatJar):
        jar.grant()
        jar.ready()
    return jar


def says(jar: Jar, *pieces: Piece) -> list[Event]:
    """Return a client's events of an answer, from its beginning."""
    start = len(jar.sent)
    jar.prefilled()
    jar.worker(*pieces)
    jar.done()
    return jar.sent[start:]


def test_tools_and_their_choice_reach_the_worker(dialect: Any) -> None:
    turn: Turn = ran(dialect, tools=[WEATHER, TIME], tool_choice="required", parallel_tool_calls=False).turn
    weather, time = turn.tools
    assert (weather.name, weather.description) == ("weather", "Of a city.")
    assert json.loads(weather.parameters_json) == CITY
    assert time == Tool("time")
    assert (turn.tool_choice, turn.parallel_tool_calls) == ("required", False)
    assert ran(dialect, tools=[WEATHER, TIME], tool_choice=TIME).turn.tool_choice == Named("time")
    turn = ran(dialect).turn
    assert (turn.tools, turn.tool_choice, turn.parallel_tool_calls) == ((), "auto", True)


def test_calls_and_results_are_part_of_the_history(dialect: Any) -> None:
    turn: Turn = ran(dialect, USER, CALLED, RESULT, tools=[WEATHER]).turn
    assert turn.messages[1:] == (
        Message("assistant", (), (Call("call_1", "weather", '{"city": "Bern"}'),)),
        Message("tool", ("Rain.",), call_id="call_1"),
    )


def _function(**fields: Any) -> Event:
    return {"type": "function", "function": {"name": "f", **fields}}


def _call(**fields: Any) -> Event:
    return {**CALLED, "tool_calls": [{**CALL, "function": {**CALL["function"], **fields}}]}  # type: ignore[dict-item]


PARAMETERS = "tools[0].function.parameters"
LARGE, ARRAY = ({"title": "x" * MAX_SCHEMA_BYTES}, {"type": "array"})
BAD_FIELDS: dict[str, tuple[Event, str]] = {
    "a name with a space": ({"tools": [_function(name="get it")]}, "tools[0].function.name"),
    "no name": ({"tools": [{"function": {}}]}, "tools[0].function.name"),
    "no function": ({"tools": [TIME, {"type": "function"}]}, "tools[1].function"),
    "another type": ({"tools": [{"type": "mcp"}]}, "tools[0].type"),
    "a name twice": ({"tools": [TIME, TIME]}, "tools[1].function.name"),
    "too many": ({"tools": [_function(name=f"t{i}") for i in range(MAX_TOOLS + 1)]}, "tools"),
    "a large schema": ({"tools": [_function(parameters=LARGE)]}, PARAMETERS),
    "a schema of no object": ({"tools": [_function(parameters=ARRAY)]}, f"{PARAMETERS}.type"),
    "a choice of nothing": ({"tool_choice": "required"}, "tool_choice"),
    "another choice": ({"tools": [TIME], "tool_choice": "any"}, "tool_choice"),
    "a tool that is not there": ({"tools": [WEATHER], "tool_choice": TIME}, "tool_choice.function.name"),
}
ARGUMENTS = "messages[1].tool_calls[0].function.arguments"
NAMELESS = {**CALLED, "tool_calls": [{"function": CALL["function"]}]}
BAD_MESSAGES: dict[str, tuple[list[Event], str]] = {
    "calls of the user": ([{**USER, "tool_calls": [CALL]}], "messages[0].tool_calls"),
    "a call without an id": ([USER, NAMELESS], "messages[1].tool_calls[0].id"),
    "arguments that are no JSON": ([USER, _call(arguments="Bern")], ARGUMENTS),
    "arguments that are no object": ([USER, _call(arguments="[1]")], ARGUMENTS),
    "large arguments": ([USER, _call(arguments='{"x": "' + "y" * MAX_CALL_BYTES + '"}')], ARGUMENTS),
    "a result of no call": ([USER, RESULT], "messages[1].tool_call_id"),
    "a result without an id": ([USER, CALLED, {"role": "tool", "content": "x"}], "messages[2].tool_call_id"),
    "a result of nothing": ([USER, CALLED, {**RESULT, "content": ""}], "messages[2].content"),
    "a result of a user": ([USER, CALLED, {**USER, "tool_call_id": "call_1"}], "messages[2].tool_call_id"),
    "a message of nothing": ([USER, {"role": "assistant"}], "messages[1].content"),
}
BAD: dict[str, tuple[list[Event], Event, str]] = {
    **{name: ([USER], fields, path) for name, (fields, path) in BAD_FIELDS.items()},
    **{name: (messages, {}, path) for name, (messages, path) in BAD_MESSAGES.items()},
}


def refusal(jar: Jar, event: Event) -> str:
    """Return the error message that a client gets for a refused event."""
    (error,) = [event for event in jar.client(event) if event["type"] == "error"]
    return str(error["error"] if isinstance(error["error"], str) else error["error"]["message"])


@pytest.mark.parametrize("case", BAD)
def test_invalid_tool_input_is_rejected_with_its_field(dialect: Any, case: str) -> None:
    make, ask, root = dialect
    messages, fields, path = BAD[case]
    jar = make()
    assert refusal(jar, ask(*messages, **fields)).startswith(f"{root}{path}")
    assert jar.runs == []


def test_a_model_without_tools_is_asked_for_none_unless_no_worker_is_known(dialect: Any) -> None:
    make, ask, root = dialect
    tools, calls = ask(USER, tools=[TIME]), ask(USER, CALLED)
    assert refusal(make(CATALOGUE), tools).startswith(f"{root}tools: expected none")
    assert refusal(make(CATALOGUE), calls).startswith(f"{root}messages[1].tool_calls: expected none")
    assert ran(dialect, catalogue=None, tools=[TIME]).turn.tools == (Tool("time"),)


def test_realtime_tool_call_is_streamed_in_deltas() -> None:
    jar = ran(DIALECTS["/v1/realtime?mode=chat"], tools=[WEATHER])
    told = says(jar, Piece(1, "Let me look.", b""), *(Piece(1, "", b"", call=delta) for delta in BERN))
    *deltas, done = told
    kinds = [event["kind"] for event in deltas]
    assert kinds == ["text", *["tool_call"] * 4]
    calls = [event["tool_call"] for event in deltas[1:]]
    assert all((it["index"], it["id"], it["name"]) == (0, "call_a", "weather") for it in calls)
    assert "".join(it["arguments"] for it in calls) == '{"city": "Bern"}'
    assert [it["complete"] for it in calls] == [False, False, False, True]
    assert len({event["response_id"] for event in told}) == 1
    assert (done["text"], done["reason"]) == ("Let me look.", "turn_end")
    assert done["tool_calls"] == [{**CALL, "id": "call_a"}]


def test_ws_chat_tool_call_is_streamed_in_deltas() -> None:
    jar = ran(DIALECTS["/ws/chat"], tools=[WEATHER])
    *chunks, done = says(jar, *(Piece(1, "", b"", call=delta) for delta in BERN))[1:]
    assert [chunk["type"] for chunk in chunks] == ["chunk"] * 4
    assert all(chunk["text_delta"] == "" for chunk in chunks)
    assert "".join(chunk["tool_call"]["arguments"] for chunk in chunks) == '{"city": "Bern"}'
    assert (done["text"], done["tool_calls"]) == ("", [{**CALL, "id": "call_a"}])


def test_without_streaming_calls_come_at_the_end(dialect: Any) -> None:
    jar = ran(dialect, tools=[WEATHER], streaming=False)
    told = says(jar, *(Piece(1, "", b"", call=delta) for delta in BERN), Piece(1, "", b"", thinking="Hm."))
    (done,) = [event for event in told if event["type"] in ("done", "response.done")]
    assert done["tool_calls"] == [{**CALL, "id": "call_a"}]
    assert done["thinking"] == "Hm."
    assert not any(event["type"] in ("chunk", "response.output.delta") for event in told)


def test_returned_tool_call_is_accepted_in_history(dialect: Any) -> None:
    first = ran(dialect, tools=[WEATHER])
    done = says(first, *(Piece(1, "", b"", call=delta) for delta in BERN))[-1]
    said = {"role": "assistant", "content": done["text"], "tool_calls": done["tool_calls"]}
    turn = ran(dialect, USER, said, {**RESULT, "tool_call_id": "call_a"}, tools=[WEATHER]).turn
    assert turn.messages[1].calls == (Call("call_a", "weather", '{"city": "Bern"}'),)


def test_two_calls_are_apart_and_one_that_is_cut_off_is_none(dialect: Any) -> None:
    again = [CallDelta(1, "call_b", "time", "{}", complete=True)]
    done = says(ran(dialect, tools=[WEATHER, TIME]), *(Piece(1, "", b"", call=it) for it in BERN + again))[-1]
    calls = [(it["id"], it["function"]["name"]) for it in done["tool_calls"]]
    assert calls == [("call_a", "weather"), ("call_b", "time")]
    jar = ran(dialect, tools=[WEATHER])
    jar.prefilled()
    jar.worker(*(Piece(1, "", b"", call=delta) for delta in BERN[:2]))
    assert "tool_calls" not in jar.done(finish=Finish.LENGTH)[0]


def test_thinking_is_sent_separately_from_text() -> None:
    jar = ran(DIALECTS["/v1/realtime?mode=chat"], enable_thinking=True)
    told = says(jar, Piece(1, "", b"", thinking="Hm."), Piece(1, "So.", b""))
    assert [(it["kind"], it["text"]) for it in told[:-1]] == [("thinking", "Hm."), ("text", "So.")]
    assert (told[-1]["text"], told[-1]["thinking"]) == ("So.", "Hm.")


def test_worker_rejection_names_client_field() -> None:
    for field, param in (
        ("turn.tools[0].parameters_json", "input.tools[0].function.parameters"),
        ("turn.tool_choice", "input.tool_choice"),
    ):
        jar = ran(DIALECTS["/v1/realtime?mode=chat"], tools=[TIME], tool_choice="required")
        error, done = jar.done(UnitEnd.FAILED, None, failure="PARAMS_INVALID", field=field)
        assert (error["error"]["code"], error["error"]["param"]) == ("invalid_payload", param)
        assert done["reason"] == "error"
