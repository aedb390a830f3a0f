"""Tools of a chat's unit, the calls in its history, and their results; their sizes are bounded before
parsing.
"""

import json
import re
from collections.abc import Set
from typing import Any, NoReturn

from antiphon.contract import (
    MAX_CALL_BYTES,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    MAX_SCHEMAS_BYTES,
    MAX_TOOL_DESCRIPTION,
    MAX_TOOLS,
    TOOL_NAME,
    Reason,
)
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.errors import UnitRefused
from inference_service.interface.engine import ModelInfo
from inference_service.interface.setups import (
    NO_TOOLS,
    Tool,
    ToolCall,
    ToolMode,
    Tools,
)

_NAME = re.compile(TOOL_NAME)
_ID = re.compile("[!-~]{1,64}")
_MODES = {
    pb.TOOL_MODE_AUTO: ToolMode.AUTO,
    pb.TOOL_MODE_NONE: ToolMode.NONE,
    pb.TOOL_MODE_REQUIRED: ToolMode.REQUIRED,
}


def read_tools(turn: pb.TurnInput, info: ModelInfo) -> Tools:
    """Return the tools that the model may call. Raises `UnitRefused`, which names the field."""
    if not turn.tools:
        if turn.tool_choice.name or turn.tool_choice.mode == pb.TOOL_MODE_REQUIRED:
            raise bad("turn.tool_choice", "needs tools to choose from")
        return NO_TOOLS
    if not info.calls_tools:
        raise unsupported("turn.tools", "this model calls no tools")
    if len(turn.tools) > MAX_TOOLS:
        raise bad("turn.tools", f"must be at most {MAX_TOOLS}, not {len(turn.tools)}")
    if sum(len(tool.parameters_json.encode()) for tool in turn.tools) > MAX_SCHEMAS_BYTES:
        raise bad("turn.tools", f"must hold at most {MAX_SCHEMAS_BYTES} bytes of schemas")
    names: set[str] = set()
    offered = tuple(_tool(tool, f"turn.tools[{i}]", names) for i, tool in enumerate(turn.tools))
    named = turn.tool_choice.name
    if named and named not in names:
        raise bad("turn.tool_choice.name", f"must be one of the tools; {named[:64]!r} is not")
    mode = ToolMode.REQUIRED if named else _MODES.get(turn.tool_choice.mode, ToolMode.AUTO)
    is_parallel = not turn.HasField("parallel_tool_calls") or turn.parallel_tool_calls
    return Tools(offered, mode, named, are_parallel=is_parallel and not named)


def _tool(tool: pb.Tool, path: str, names: set[str]) -> Tool:
    """Read one tool; its name is added to `names`, which holds those of earlier tools."""
    _check_name(tool.name, f"{path}.name")
    if tool.name in names:
        raise bad(f"{path}.name", f"must differ from those before; {tool.name!r} does not")
    names.add(tool.name)
    if len(tool.description) > MAX_TOOL_DESCRIPTION:
        raise bad(
            f"{path}.description",
            f"must have at most {MAX_TOOL_DESCRIPTION} characters, not {len(tool.description)}",
        )
    return Tool(tool.name, tool.description, _schema(tool.parameters_json, f"{path}.parameters_json"))


def _schema(text: str, path: str) -> dict[str, Any]:
    if not text:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    schema = _object(text, path, MAX_SCHEMA_BYTES)
    if schema.setdefault("type", "object") != "object":
        raise bad(path, 'must be a JSON Schema of type "object"')
    return schema


def read_calls(message: pb.ChatMessage, path: str, info: ModelInfo) -> tuple[ToolCall, ...]:
    """Read the calls of an entry of the history. Raises `UnitRefused`."""
    field = f"{path}.tool_calls"
    if not info.calls_tools:
        raise unsupported(field, "this model calls no tools")
    if message.role != pb.ROLE_ASSISTANT:
        raise bad(field, "must be those of ROLE_ASSISTANT")
    if len(message.tool_calls) > MAX_TOOLS:
        raise bad(field, f"must be at most {MAX_TOOLS}, not {len(message.tool_calls)}")
    return tuple(_call(call, f"{field}[{i}]") for i, call in enumerate(message.tool_calls))


def _call(call: pb.ToolCall, path: str) -> ToolCall:
    if not _ID.fullmatch(call.id):
        raise bad(f"{path}.id", "must be 1 to 64 visible ASCII characters")
    _check_name(call.name, f"{path}.name")
    arguments = _object(call.arguments_json, f"{path}.arguments_json", MAX_CALL_BYTES)
    return ToolCall(call.id, call.name, arguments)


def check_result(message: pb.ChatMessage, path: str, called: Set[str]) -> None:
    """Check that an entry is the result of one of the calls before it. Raises `UnitRefused`."""
    field = f"{path}.tool_call_id"
    if message.role != pb.ROLE_TOOL:
        raise bad(field, "must be that of ROLE_TOOL")
    if message.tool_call_id not in called:
        raise bad(field, "must be the id of a call in an earlier entry")
    for i, content in enumerate(message.content):
        if content.WhichOneof("part") != "text":
            raise unsupported(f"{path}.content[{i}]", "the result of a call is text")


def _check_name(name: str, path: str) -> None:
    if not _NAME.fullmatch(name):
        raise bad(path, f"must match {TOOL_NAME}; {name[:64]!r} does not")


def _object(text: str, path: str, most: int) -> dict[str, Any]:
    """Return a JSON object of at most `most` bytes and limited depth."""
    if len(text.encode()) > most:
        raise bad(path, f"must have at most {most} bytes, not {len(text.encode())}")
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise bad(path, "must be valid JSON") from None
    if not isinstance(value, dict):
        raise bad(path, "must be a JSON object")
    if _is_deep(value):
        raise bad(path, f"must be nested at most {MAX_SCHEMA_DEPTH} deep")
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_SCHEMA_DEPTH):
        level = [
            inner
            for it in level
            if isinstance(it, dict | list)
            for inner in (it.values() if isinstance(it, dict) else it)
        ]
        if not level:
            return False
    return True


def _no_constant(word: str) -> NoReturn:
    raise ValueError(word)


def bad(field: str, problem: str) -> UnitRefused:
    """Return the refusal of an invalid value."""
    return UnitRefused(Reason.PARAMS_INVALID, f"{field} {problem}.", field)


def unsupported(field: str, problem: str) -> UnitRefused:
    """Return the refusal of input that the model does not support."""
    return UnitRefused(Reason.CONTENT_UNSUPPORTED, f"{field}: {problem}.", field)
