"""Tools over the wire: what a turn may bring, which field is at fault, and how what is called travels."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from antiphon.contract import (
    MAX_CALL_BYTES,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    MAX_TOOL_DESCRIPTION,
    MAX_TOOLS,
)
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.errors import UnitRefused
from inference_service.interface.engine import CallDelta, ModelInfo, Piece
from inference_service.interface.setups import (
    NO_TOOLS,
    ChatMessage,
    ChatSetup,
    Mode,
    Sampling,
    Tool,
    ToolCall,
    ToolMode,
    Tools,
    TurnInput,
)
from inference_service.rpc.messages import replies
from inference_service.rpc.messages.turns import turn_input
from tests.support.scripted_engine import INFO
from ws_adapter.protocol.core import signals
from ws_adapter.protocol.core.actions import RunTurn
from ws_adapter.protocol.core.turn import Call, Message, Named, Turn
from ws_adapter.protocol.core.turn import Tool as Offered
from ws_adapter.worker import convert

ABLE = replace(INFO, modes=frozenset({Mode.CHAT}), speaks=False, calls_tools=True)
UNABLE = replace(ABLE, calls_tools=False)
CHATS = ChatSetup(Sampling(), seed=0)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = pb.Tool(name="weather", description="Of a city.", parameters_json=json.dumps(CITY))
TIME = pb.Tool(name="time")
CALL = pb.ToolCall(id="call_1", name="weather", arguments_json='{"city": "Bern"}')


def message(words: str, role: pb.Role = pb.ROLE_USER, **fields: Any) -> pb.ChatMessage:
    return pb.ChatMessage(role=role, content=[pb.Content(text=words)], **fields)


def turn(*messages: pb.ChatMessage, **fields: Any) -> pb.TurnInput:
    return pb.TurnInput(messages=messages or [message("Hello")], **fields)


def calls(*given: pb.ToolCall) -> pb.ChatMessage:
    return pb.ChatMessage(role=pb.ROLE_ASSISTANT, tool_calls=given)


def a_call(**changes: str) -> pb.TurnInput:
    """A turn with one call, of which something is changed."""
    return turn(calls(pb.ToolCall(**{"id": "1", "name": "time", "arguments_json": "{}"} | changes)))


def result(words: str, of: str) -> pb.ChatMessage:
    return message(words, pb.ROLE_TOOL, tool_call_id=of)


def schema(text: str) -> pb.TurnInput:
    return turn(tools=[pb.Tool(name="x", parameters_json=text)])


def read(given: pb.TurnInput, info: ModelInfo = ABLE) -> TurnInput:
    return turn_input(given, info, CHATS)


def test_a_turn_of_the_adapter_reaches_the_engine_whole() -> None:
    given = Turn(
        (
            Message("user", ("Weather?",)),
            Message("assistant", (), (Call("call_1", "weather", '{"city": "Bern"}'),)),
            Message("tool", ("Rain.",), call_id="call_1"),
        ),
        tools=(Offered("weather", "Of a city.", json.dumps(CITY)), Offered("time")),
        tool_choice="required",
        parallel_tool_calls=False,
    )

    told = read(convert.prefill(RunTurn(1, given), "").turn)

    assert told.messages == (
        ChatMessage("user", ("Weather?",)),
        ChatMessage("assistant", (), (ToolCall("call_1", "weather", {"city": "Bern"}),)),
        ChatMessage("tool", ("Rain.",), call_id="call_1"),
    )
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    assert told.tools == Tools(
        (Tool("weather", "Of a city.", CITY), Tool("time", "", nothing)),
        ToolMode.REQUIRED,
        are_parallel=False,
    )


@pytest.mark.parametrize(
    ("choice", "mode", "named"),
    [
        ("auto", ToolMode.AUTO, ""),
        ("none", ToolMode.NONE, ""),
        ("required", ToolMode.REQUIRED, ""),
        (Named("auto"), ToolMode.REQUIRED, "auto"),
    ],
)
def test_a_choice_of_the_adapter_is_that_of_the_engine(choice: Any, mode: ToolMode, named: str) -> None:
    given = Turn((Message("user", ("Hi",)),), tools=(Offered("auto"),), tool_choice=choice)
    told = read(convert.prefill(RunTurn(1, given), "").turn).tools
    assert (told.mode, told.named, told.are_parallel) == (mode, named, not named)


def test_without_tools_there_is_nothing_to_choose() -> None:
    assert read(turn()).tools == NO_TOOLS
    assert read(turn(tool_choice=pb.ToolChoice(mode=pb.TOOL_MODE_NONE))).tools == NO_TOOLS
    assert not convert.prefill(RunTurn(1, Turn((Message("user", ("Hi",)),))), "").turn.HasField("tool_choice")


SCHEMA = "turn.tools[0].parameters_json"
DEEP = json.dumps({"type": "object", "x": json.loads("[" * MAX_SCHEMA_DEPTH + "]" * MAX_SCHEMA_DEPTH)})
BAD_TOOLS: dict[str, tuple[pb.TurnInput, str]] = {
    "a name with a space": (turn(tools=[pb.Tool(name="get weather")]), "turn.tools[0].name"),
    "no name": (turn(tools=[TIME, pb.Tool()]), "turn.tools[1].name"),
    "a long name": (turn(tools=[pb.Tool(name="x" * 65)]), "turn.tools[0].name"),
    "a name twice": (turn(tools=[TIME, WEATHER, TIME]), "turn.tools[2].name"),
    "a long description": (
        turn(tools=[pb.Tool(name="x", description="y" * (MAX_TOOL_DESCRIPTION + 1))]),
        "turn.tools[0].description",
    ),
    "too many": (turn(tools=[pb.Tool(name=f"t{i}") for i in range(MAX_TOOLS + 1)]), "turn.tools"),
    "no JSON": (schema("{"), SCHEMA),
    "a number that JSON does not have": (schema('{"default": NaN}'), SCHEMA),
    "brackets without end": (schema("[" * MAX_SCHEMA_BYTES), SCHEMA),
    "a list": (schema("[]"), SCHEMA),
    "a deep schema": (schema(DEEP), SCHEMA),
    "a schema of no object": (schema('{"type": "string"}'), SCHEMA),
    "a large schema": (schema(json.dumps({"title": "é" * MAX_SCHEMA_BYTES})), SCHEMA),
    "many schemas": (
        turn(tools=[pb.Tool(name=f"t{i}", parameters_json=f'{{"x": "{"y" * 1100}"}}') for i in range(120)]),
        "turn.tools",
    ),
    "a choice of nothing": (turn(tool_choice=pb.ToolChoice(mode=pb.TOOL_MODE_REQUIRED)), "turn.tool_choice"),
    "a choice that is not there": (
        turn(tools=[TIME], tool_choice=pb.ToolChoice(name="weather")),
        "turn.tool_choice.name",
    ),
    "calls of a user": (turn(message("Hi", tool_calls=[CALL])), "turn.messages[0].tool_calls"),
    "a call without an id": (a_call(id=""), "turn.messages[0].tool_calls[0].id"),
    "a call of no name": (a_call(name="<|im_end|>"), "turn.messages[0].tool_calls[0].name"),
    "arguments that are none": (
        turn(calls(CALL, pb.ToolCall(id="1", name="time", arguments_json='"now"'))),
        "turn.messages[0].tool_calls[1].arguments_json",
    ),
    "large arguments": (
        a_call(arguments_json=json.dumps({"x": "y" * MAX_CALL_BYTES})),
        "turn.messages[0].tool_calls[0].arguments_json",
    ),
    "a result of nothing": (turn(result("Rain.", "")), "turn.messages[0].tool_call_id"),
    "a result before its call": (
        turn(result("Rain.", "call_1"), calls(CALL)),
        "turn.messages[0].tool_call_id",
    ),
    "a result of the user's": (
        turn(calls(CALL), message("Rain.", tool_call_id="call_1")),
        "turn.messages[1].tool_call_id",
    ),
    "a message of nothing": (turn(pb.ChatMessage(role=pb.ROLE_ASSISTANT)), "turn.messages[0].content"),
}


UNABLE_CASES: dict[str, tuple[pb.TurnInput, str]] = {
    "tools": (turn(tools=[TIME]), "turn.tools"),
    "a call": (turn(calls(CALL)), "turn.messages[0].tool_calls"),
    "a result": (turn(message("Hi"), result("Rain.", "call_1")), "turn.messages[1].role"),
}


@pytest.mark.parametrize("case", [*BAD_TOOLS, *UNABLE_CASES])
def test_invalid_or_unsupported_tools_are_refused_with_their_field(case: str) -> None:
    is_able = case in BAD_TOOLS
    given, field = (BAD_TOOLS if is_able else UNABLE_CASES)[case]
    with pytest.raises(UnitRefused) as refused:
        read(given, ABLE if is_able else UNABLE)
    failure = refused.value.failure
    assert (failure.reason, failure.field) == ("PARAMS_INVALID" if is_able else "CONTENT_UNSUPPORTED", field)
    assert field in failure.message


def test_the_result_of_a_call_is_text() -> None:
    picture = pb.ChatMessage(role=pb.ROLE_TOOL, tool_call_id="call_1", content=[pb.Content()])
    picture.content[0].image.data = b"?"
    with pytest.raises(UnitRefused) as refused:
        read(turn(calls(CALL), picture), replace(ABLE, sees=True))
    assert refused.value.failure.field == "turn.messages[1].content[0]"


def test_a_worker_says_whether_it_takes_tools() -> None:
    assert replies.model_info(ABLE).calls_tools
    assert not replies.model_info(UNABLE).calls_tools


ANSWER = [
    Piece(3, thinking="Hm"),
    Piece(3, thinking=", rain."),
    Piece(3, "Let me "),
    Piece(3, "look."),
    Piece(3, call=CallDelta(0, "call_a", "weather")),
    Piece(3, call=CallDelta(0, arguments='{"city": ')),
    Piece(3, call=CallDelta(0, arguments='"Bern"}', complete=True)),
    Piece(3, call=CallDelta(1, "call_b", "time", "{}", complete=True)),
    Piece(3, "Done"),
    Piece(3, thinking="Was it?"),
    Piece(3, call=CallDelta(2, "call_c", "time", "{}", complete=True)),
]


def test_pieces_of_calls_and_thinking_travel() -> None:
    told = [convert.piece(replies.piece(piece, 0), piece.unit) for piece in ANSWER]
    assert told[0] == signals.Piece(3, "", b"", thinking="Hm")
    assert told[6] == signals.Piece(3, "", b"", call=signals.CallDelta(0, arguments='"Bern"}', complete=True))
    assert told[7] == signals.Piece(3, "", b"", call=signals.CallDelta(1, "call_b", "time", "{}", True))


def _spoken(answers: Iterator[pb.GenerateResponse]) -> list[tuple[str, str]]:
    """Return the pieces in order, neighbours of one kind joined."""
    said: list[tuple[str, str]] = []
    for answer in answers:
        piece = convert.piece(answer, answer.unit)
        assert piece is not None
        said += [("thinking", piece.thinking), ("text", piece.text)]
        if piece.call is not None:
            it = piece.call
            said.append((f"call {it.index}", it.id + it.name + it.arguments + ("." if it.complete else "")))
    joined = itertools.groupby((it for it in said if it[1]), key=lambda it: it[0])
    return [(kind, "".join(text for _, text in group)) for kind, group in joined]


def _merged(may: Callable[[int], bool]) -> Iterator[pb.GenerateResponse]:
    waiting: pb.GenerateResponse | None = None
    for i, piece in enumerate(ANSWER):
        message = replies.piece(piece, 0)
        if waiting is not None and may(i) and replies.absorb(waiting, message):
            continue
        if waiting is not None:
            yield waiting
        waiting = message
    assert waiting is not None
    yield waiting


def test_an_answer_that_waits_for_its_reader_keeps_its_order() -> None:
    """The transport may join all pieces, none, or any choice of some."""
    apart = _spoken(_merged(lambda i: False))
    assert [kind for kind, _ in apart] == [
        "thinking", "text", "call 0", "call 1", "text", "thinking", "call 2"
    ]  # fmt: skip
    assert len(list(_merged(lambda i: True))) == 4
    for joined in range(2 ** len(ANSWER)):
        assert _spoken(_merged(lambda i, joined=joined: bool(joined >> i & 1))) == apart  # type: ignore[misc]
