"""Syntax of tool calls in families of models, detected by rendering a chat template."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_NAME, _KEY, _VALUE = "probe_tool", "probe_key", "probe_value"
_DESCRIPTION, _RESULT = "probe description", "probe result"

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": _DESCRIPTION,
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}, "required": [_KEY]},
    },
}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "a"},
    {"role": "user", "content": "b"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call00001", "type": "function", "function": {"name": _NAME, "arguments": {_KEY: _VALUE}}}
        ],
    },
    {"role": "tool", "content": _RESULT, "tool_call_id": "call00001", "name": _NAME},
    {"role": "assistant", "content": "c"},
    {"role": "user", "content": "d"},
]
"""A conversation with a call, in the form that templates take."""


@dataclass(frozen=True)
class CallSyntax:
    """The text round a call, which is a JSON object of a name and arguments."""

    arguments: str
    """The key of the arguments; that of the name is `name`."""
    begin: str
    """Text before a call."""
    end: str = ""
    """Text after a call, if any."""
    is_bare: bool = False
    """Whether a call may stand without `begin` at the start of an answer, and after another call."""

    @property
    def separator(self) -> str:
        """The text between two calls."""
        return "; " if self.is_bare else "\n"


HERMES = CallSyntax("arguments", "<tool_call>", "</tool_call>")
"""Hermes, Qwen 2.5, Qwen 3 and models derived from them."""
LLAMA = CallSyntax("parameters", "<|python_tag|>", is_bare=True)
"""Llama 3.1 to 3.3."""

_WRITTEN = {
    HERMES: re.compile(rf'<tool_call>\s*\{{"name": ?"{_NAME}", ?"arguments": ?\{{"{_KEY}"'),
    LLAMA: re.compile(rf'(?<!<tool_call>\n)\{{"name": ?"{_NAME}", ?"parameters": ?\{{"{_KEY}"'),
}


def as_json(text: str) -> str:
    """Return text as templates write it into JSON."""
    return json.dumps(text, ensure_ascii=False)


def detect_syntax(render: Callable[[list[dict[str, Any]], list[dict[str, Any]]], str]) -> CallSyntax | None:
    """Return the syntax of the calls that a template writes; None if it supports no tools, or has another
    syntax.

    `render` gives the text of messages with these tools, and may raise `ValueError`.
    """
    try:
        written = render(TALK, [TOOL])
    except ValueError:
        return None
    if _DESCRIPTION not in written or _RESULT not in written:
        return None
    return next((syntax for syntax, form in _WRITTEN.items() if form.search(written)), None)
