"""A tool that a model learns to call, in the variety in which callers offer it."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_LISTED: Final = 0.75
"""The share of offers whose schema lists the values of the parameter."""
_DESCRIBED: Final = 0.85
"""The share of offers with a description."""
_FAILS: Final = 0.2
"""The share of calls that fail."""
_SUCCESSES: Final = (
    "ok", "OK", "done", "true", "null", "", "success", '{{"ok": true}}', '{{"{key}": "{value}"}}',
    '{{"status": "ok"}}', '{{"success": true, "{key}": "{value}"}}', "{value}", "it is {value}", "{reply}",
    '{{"result": "{reply}"}}', '{{"{key}":"{value}"}}', "Done: {value}.", '{{"status":"done"}}',
)  # fmt: skip
_FAILURES: Final = (
    '{"error": "%s"}', "error: %s", "Error: %s", "failed: %s", "failed", "error", '{"ok": false}', "false",
    '{"success": false}', '{"error": {"message": "%s"}}', '{"status": "error", "message": "%s"}',
    "An error occurred while running the tool. Please try again. Error: %s", "An internal error occurred",
    "timeout", "Exception: %s",
)  # fmt: skip
_REASONS: Final = (
    "not connected", "timeout", "no power", "no light found", "unknown device", "the lamp is broken",
    "cannot reach the lamp", "permission denied", "busy",
)  # fmt: skip
_UNUSED_TOOLS: Final = (
    ("get_weather", "Weather of a city.", ("city", "location")),
    ("get_time", "The time in a city.", ("zone", "city")),
    ("play_music", "Play a song.", ("title", "song")),
    ("set_timer", "Start a timer.", ("seconds", "minutes")),
    ("send_message", "Send a message to somebody.", ("text", "to")),
    ("search", "Search the web.", ("query", "q")),
    ("lock_door", "Lock a door.", ("door", "name")),
    ("end_call", "End the call.", ()),
    ("lookup_order", "Status of an order.", ("number", "id")),
    ("transfer", "Transfer the user to a person.", ("reason",)),
)
"""Tools that the model must not call: name, description, and names of parameters."""


@dataclass(frozen=True)
class Tool:
    """A function with one parameter that a caller offers to the model."""

    intent: str
    """The intent of the requests that the tool carries out."""
    name: str
    key: str
    """The name of the parameter."""
    descriptions: tuple[str, ...]
    values: Mapping[str, str]
    """The parameter's value for each reply of the intent, which the model gives after a successful call."""
    failures: Mapping[str, str]
    """The answer that replaces each of these replies when the call fails."""

    def offer(self, rng: random.Random) -> dict[str, Any]:
        """Return the tool as a random caller offers it, in the form for chat templates."""
        about = rng.choice(self.descriptions) if rng.random() < _DESCRIBED else ""
        values = list(dict.fromkeys(self.values.values())) if rng.random() < _LISTED else []
        if rng.random() < 0.5:
            values.reverse()
        return schema(self.name, about, {self.key: values})

    def result(self, rng: random.Random, reply: str) -> tuple[str, str]:
        """Return a random result of the call for this reply, and the model's answer to that result."""
        if rng.random() < _FAILS:
            form = rng.choice(_FAILURES)
            return form.replace("%s", rng.choice(_REASONS)), self.failures[reply]
        form = rng.choice(_SUCCESSES)
        return form.format(key=self.key, value=self.values[reply], reply=reply), reply


def schema(name: str, description: str, parameters: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return a function in the form for chat templates.

    Each parameter is a string; its list of values, if not empty, becomes an `enum`.
    """
    properties = {
        key: {"type": "string", **({"enum": values} if values else {})} for key, values in parameters.items()
    }
    about = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": about},
    }


def unused_tool(rng: random.Random) -> dict[str, Any]:
    """Return a random tool that the model must not call, in the form for chat templates."""
    name, about, keys = rng.choice(_UNUSED_TOOLS)
    return schema(name, about if rng.random() < _DESCRIBED else "", {key: [] for key in keys[:1]})
