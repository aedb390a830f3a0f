"""Tools of a chat turn, and calls in its history and its answer, in the form of chat completions."""

from collections.abc import Sequence, Set
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from antiphon.contract import (
    MAX_CALL_BYTES,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMAS_BYTES,
    MAX_TOOL_DESCRIPTION,
    MAX_TOOLS,
    TOOL_NAME,
)
from ws_adapter.protocol.chat.saved import SavedCalls
from ws_adapter.protocol.core.signals import CallDelta
from ws_adapter.protocol.core.turn import Call, Named, Tool
from ws_adapter.protocol.core.turn import ToolChoice as TurnsChoice
from ws_adapter.protocol.wire.errors import invalid, missing
from ws_adapter.protocol.wire.faults import shown

ToolName: TypeAlias = Annotated[str, Meta(pattern=f"^{TOOL_NAME}$")]
CallId: TypeAlias = Annotated[str, Meta(pattern="^[!-~]{1,64}$")]


class FunctionFields(Struct, frozen=True):
    """A function that the model may call."""

    name: ToolName | None = None
    description: Annotated[str, Meta(max_length=MAX_TOOL_DESCRIPTION)] | None = None
    """The description of the function, for the model."""
    parameters: dict[str, Any] | None = None
    """JSON Schema of its arguments, of type object; without one the function takes no arguments. At most
    16,384 bytes, and 131,072 bytes for all tools."""

    REQUIRED: ClassVar = ("name",)


class ToolFields(Struct, frozen=True):
    """A function that the client runs."""

    type: Literal["function"] | None = None
    function: FunctionFields | None = None

    REQUIRED: ClassVar = ("function",)


class ChosenFunction(Struct, frozen=True):
    """The name of a tool."""

    name: ToolName | None = None

    REQUIRED: ClassVar = ("name",)


class ChosenTool(Struct, frozen=True):
    """The one tool that the model must call."""

    type: Literal["function"] | None = None
    function: ChosenFunction | None = None

    REQUIRED: ClassVar = ("function",)


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | ChosenTool


class CalledFunction(Struct, frozen=True):
    """A called function with its arguments."""

    name: ToolName | None = None
    arguments: str | None = None
    """A JSON object, at most 65,536 bytes."""

    REQUIRED: ClassVar = ("name", "arguments")


class CallFields(Struct, frozen=True):
    """A call that the model made."""

    id: CallId | None = None
    type: Literal["function"] | None = None
    function: CalledFunction | None = None

    REQUIRED: ClassVar = ("id", "function")


class DoneFunction(Struct, frozen=True):
    """A called function with its arguments."""

    name: str
    arguments: str
    """A JSON object."""


class DoneCall(Struct, frozen=True):
    """A call that is complete, as a message of the assistant has it in a later turn."""

    id: str
    type: Literal["function"]
    function: DoneFunction


class CallPiece(Struct, frozen=True):
    """A piece of a call."""

    index: Annotated[int, Meta(ge=0)]
    """The index of the call in the answer, from 0."""
    id: str
    name: str
    arguments: str
    """The next part of the arguments; all parts together are a JSON object."""
    complete: bool
    """Whether the arguments are complete. A call that is never complete must not be carried out."""


class Calls:
    """The calls of an answer, collected piece by piece."""

    def __init__(self) -> None:
        self._names: list[tuple[str, str]] = []
        self._arguments: list[list[str]] = []
        self._complete: set[int] = set()

    def save(self) -> SavedCalls:
        """Return the state."""
        arguments = tuple("".join(pieces) for pieces in self._arguments)
        return SavedCalls(tuple(self._names), arguments, frozenset(self._complete))

    def restore(self, saved: SavedCalls) -> None:
        """Go on from a saved state."""
        self._names, self._complete = list(saved.names), set(saved.complete)
        self._arguments = [[text] for text in saved.arguments]

    def add(self, delta: CallDelta) -> CallPiece:
        """Add a delta of a call; return the public piece with the index of the call."""
        if delta.id:
            self._names.append((delta.id, delta.name))
            self._arguments.append([])
        self._arguments[-1].append(delta.arguments)
        if delta.complete:
            self._complete.add(len(self._names) - 1)
        return CallPiece(len(self._names) - 1, *self._names[-1], delta.arguments, delta.complete)

    @property
    def have_begun(self) -> bool:
        """Whether there are any calls."""
        return bool(self._names)

    @property
    def complete(self) -> list[DoneCall]:
        """The calls that may be carried out."""
        return [
            DoneCall(call_id, "function", DoneFunction(name, "".join(self._arguments[i])))
            for i, (call_id, name) in enumerate(self._names)
            if i in self._complete
        ]


def read_tools(given: Sequence[ToolFields] | None, path: str, *, calls_tools: bool) -> tuple[Tool, ...]:
    """Read the tools of a turn at `path`. Raises `Refusal`."""
    if not given:
        return ()
    if not calls_tools:
        raise invalid(path, "expected none: the model calls no tools")
    if len(given) > MAX_TOOLS:
        raise invalid(path, f"expected at most {MAX_TOOLS} tools, got {len(given)}")
    read: dict[str, Tool] = {}
    for i, fields in enumerate(given):
        tool = _tool(fields, f"{path}[{i}].function")
        if tool.name in read:
            raise invalid(f"{path}[{i}].function.name", f"there are two tools {shown(tool.name)}")
        read[tool.name] = tool
    if sum(len(tool.parameters_json) for tool in read.values()) > MAX_SCHEMAS_BYTES:
        raise invalid(path, f"expected at most {MAX_SCHEMAS_BYTES} bytes of parameters, got more")
    return tuple(read.values())


def _tool(fields: ToolFields, path: str) -> Tool:
    function = fields.function
    if function is None:
        raise missing(path, "an object")
    if function.name is None:
        raise missing(f"{path}.name", "the name of a function")
    if not function.parameters:
        return Tool(function.name, function.description or "")
    if function.parameters.get("type", "object") != "object":
        raise invalid(f"{path}.parameters.type", 'expected "object"')
    parameters = msgspec.json.encode(function.parameters)
    if len(parameters) > MAX_SCHEMA_BYTES:
        raise invalid(
            f"{path}.parameters", f"expected at most {MAX_SCHEMA_BYTES} bytes, got {len(parameters)}"
        )
    return Tool(function.name, function.description or "", parameters.decode())


def read_choice(given: ToolChoice | None, tools: Sequence[Tool], path: str) -> TurnsChoice:
    """Return the tool choice of a turn. Raises `Refusal`."""
    if isinstance(given, ChosenTool):
        name = given.function.name if given.function is not None else None
        if name is None:
            raise missing(f"{path}.function.name", "the name of a tool")
        if all(tool.name != name for tool in tools):
            raise invalid(f"{path}.function.name", f"there is no tool {shown(name)}")
        return Named(name)
    if given == "required" and not tools:
        raise invalid(path, "expected auto or none: there are no tools")
    return given or "auto"


def read_calls(given: Sequence[CallFields], path: str) -> tuple[Call, ...]:
    """Read calls in the history. Raises `Refusal`."""
    if len(given) > MAX_TOOLS:
        raise invalid(path, f"expected at most {MAX_TOOLS} calls in one message, got {len(given)}")
    return tuple(_call(call, f"{path}[{i}]") for i, call in enumerate(given))


def _call(fields: CallFields, path: str) -> Call:
    if fields.id is None:
        raise missing(f"{path}.id", "the id of the call")
    function = fields.function or CalledFunction()
    if function.name is None:
        raise missing(f"{path}.function.name", "the name of the tool")
    arguments = f"{path}.function.arguments"
    if function.arguments is None:
        raise missing(arguments, "a JSON object as text")
    if len(function.arguments.encode()) > MAX_CALL_BYTES:
        raise invalid(arguments, f"expected at most {MAX_CALL_BYTES} bytes, got more")
    try:
        is_object = isinstance(_OBJECT.decode(function.arguments), dict)
    except (msgspec.DecodeError, RecursionError):
        is_object = False
    if not is_object:
        raise invalid(arguments, "expected a JSON object as text")
    return Call(fields.id, function.name, function.arguments)


_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


def check_result(call_id: str | None, called: Set[str], path: str) -> str:
    """Return the id of the earlier call that a tool message answers. Raises `Refusal`."""
    if call_id is None:
        raise missing(path, "the id of the call")
    if call_id not in called:
        raise invalid(path, f"no message before it has a call {shown(call_id)}")
    return call_id
