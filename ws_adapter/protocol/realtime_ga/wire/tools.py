"""Tools as clients define them, for the worker."""

from collections.abc import Sequence
from typing import Final

import msgspec

from ws_adapter.protocol.core.turn import Named, Tool
from ws_adapter.protocol.core.turn import ToolChoice as TurnsChoice
from ws_adapter.protocol.realtime_ga.wire.fields import FunctionTool, ToolChoice, ToolOfChoice
from ws_adapter.protocol.wire.errors import invalid
from ws_adapter.protocol.wire.faults import shown

MOST_PARAMETERS: Final = 16_384
"""The most bytes of the JSON Schema of one tool."""

MOST_BYTES: Final = 131_072
"""The most bytes of the JSON Schemas of all tools together."""


def read_tools(given: Sequence[FunctionTool], path: str, *, calls_tools: bool) -> tuple[Tool, ...]:
    """Return the tools of a session or a response: none if the model calls none.

    Raises `Refusal` for an invalid tool, whatever the model.
    """
    read: dict[str, Tool] = {}
    size = 0
    for i, tool in enumerate(given):
        assert tool.name is not None
        if tool.name in read:
            raise invalid(f"{path}[{i}].name", f"there are two tools {shown(tool.name)}")
        parameters = msgspec.json.encode(tool.parameters).decode() if tool.parameters else ""
        size += len(parameters)
        if len(parameters) > MOST_PARAMETERS or size > MOST_BYTES:
            most = f"{MOST_PARAMETERS} bytes of JSON, and {MOST_BYTES} in all tools"
            raise invalid(f"{path}[{i}].parameters", f"expected at most {most}, got more")
        if tool.parameters and tool.parameters.get("type", "object") != "object":
            raise invalid(f"{path}[{i}].parameters.type", 'expected "object"')
        read[tool.name] = Tool(tool.name, tool.description or "", parameters)
    return tuple(read.values()) if calls_tools else ()


def read_choice(given: ToolChoice, tools: Sequence[Tool], path: str, *, calls_tools: bool) -> TurnsChoice:
    """Return the choice among `tools`. Raises `Refusal` if it forces an impossible call."""
    if not calls_tools and given not in ("auto", "none"):
        raise invalid(path, "expected auto or none: the model calls no tools")
    if isinstance(given, ToolOfChoice):
        if all(tool.name != given.name for tool in tools):
            raise invalid(f"{path}.name", f"there is no tool {shown(given.name)}")
        return Named(given.name or "")
    if given == "required" and not tools:
        raise invalid(path, "expected auto or none: there are no tools")
    return given
