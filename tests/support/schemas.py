"""Checks events against the published schemas, in the files that are checked in.

Events of the server are checked more strictly than a client should: a field that the schema does not name is
an error here, whereas a client has to ignore what it does not know.
"""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

from jsonschema import Draft202012Validator

from tests.support import openai_types

FOLDER: Final = Path(__file__).parents[2] / "docs/protocol"
DIALECTS: Final = (
    "realtime",
    "realtime_chat",
    "earlier",
    "duplex",
    "chat",
    "transcription",
    "live",
    "realtime_ga",
    "transcription_ga",
)

_CLIENT: Final = "ClientEvent"
_SERVER: Final = "ServerEvent"

Event = dict[str, Any]


def check_client(dialect: str, event: Any) -> None:
    fault = _fault(dialect, _CLIENT, event)
    assert fault is None, fault


def check_server(dialect: str, event: Any) -> None:
    fault = _fault(dialect, _SERVER, event)
    assert fault is None, fault


def is_client_event(dialect: str, event: Any) -> bool:
    return _fault(dialect, _CLIENT, event) is None


class Observer:
    """Checks a conversation on `path`; where that leaves two dialects, what the server says tells which."""

    def __init__(self, path: str) -> None:
        self._dialects = _spoken_on(path)
        self._sent: list[Any] = []
        self._refused = False

    def server_said(self, event: Any) -> None:
        """Fails if no dialect is left in which the server may send `event` after all that it sent."""
        self._dialects = _narrowed(self._dialects, _SERVER, event)
        self._refused = self._refused or event["type"] == "error"

    def client_was_heard(self, event: Any) -> None:
        """Fails if `event`, which the server accepted, is none that a client may send."""
        _narrowed(self._dialects, _CLIENT, event)

    def client_said(self, event: Any) -> None:
        self._sent.append(event)

    def end(self) -> None:
        """Fails if the server accepted all that the client said, and something of that no client may send."""
        for event in [] if self._refused else self._sent:
            self.client_was_heard(event)


def load(name: str) -> Event:
    document: Event = json.loads((FOLDER / name).read_text())
    return document


def resolve(document: Any, pointer: str) -> Any:
    for part in pointer.removeprefix("#/").split("/"):
        document = document[part]
    return document


def examples(dialect: str) -> list[Event]:
    return [json.loads(line) for line in (FOLDER / f"examples/{dialect}.jsonl").open()]


def _spoken_on(path: str) -> tuple[str, ...]:
    if path.startswith("/ws/"):
        return ("chat",) if path.startswith("/ws/chat") else ("duplex",)
    if "/live/" in path:
        return ("live",)
    if "intent=transcription" in path:
        return ("transcription", "transcription_ga", "realtime_ga")  # by a client secret
    if "model=" in path and "mode=" not in path:
        return ("realtime_ga", "transcription_ga", "transcription")  # by a client secret, by the default mode
    if "transcription" in path:
        return ("transcription",)
    if "mode=" in path:
        return ("realtime_chat",) if "mode=chat" in path else ("realtime", "earlier")
    return ("realtime", "earlier", "realtime_chat", "transcription", "realtime_ga", "transcription_ga")


def _narrowed(dialects: Iterable[str], side: str, event: Any) -> tuple[str, ...]:
    faults = {dialect: _fault(dialect, side, event) for dialect in dialects}
    left = tuple(dialect for dialect, fault in faults.items() if fault is None)
    assert left, "; ".join(f"{dialect}: {fault}" for dialect, fault in faults.items())
    return left


def _fault(dialect: str, side: str, event: Any) -> str | None:
    if not isinstance(event, dict):
        return f"an event is an object, not {type(event).__name__}"
    name, kind = event.get("type"), event.get("kind")
    known = _validators(dialect, side)
    # A request without a name is told from others by being the only one.
    validator = known.get(f"{name} {kind}", known.get(str(name), known.get("")))
    if validator is None:
        return f"no {side} of {dialect}: type {name!r}, kind {kind!r}"
    for error in validator.iter_errors(event):
        return f"{name}, {error.json_path}: {error.message:.300}"
    return openai_types.fault(dialect, side, event)


@cache
def _validators(dialect: str, side: str) -> dict[str, Draft202012Validator]:
    """A validator for each event by its `type`, or `type` and `kind`."""
    document = load(f"{dialect}.schema.json")
    definitions = document["$defs"]
    if side == _SERVER:
        for name in _reached(definitions, side):
            if "properties" in definitions[name]:
                definitions[name]["additionalProperties"] = False
    _inline(definitions, definitions)
    made = {}
    for choice in definitions[side]["oneOf"]:
        fields = choice["properties"]
        name = " ".join(fields[part]["const"] for part in ("type", "kind") if part in fields)
        made[name] = Draft202012Validator(choice)
    return made


def _inline(part: Any, definitions: Event) -> None:
    """Replace references by their targets: looking them up takes a third of each check."""
    items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in list(items):
        if isinstance(value, dict) and "$ref" in value:
            assert value.keys() <= {"$ref", "description", "default"}, value
            part[key] = definitions[value["$ref"].rpartition("/")[2]]
        else:
            _inline(value, definitions)


def _reached(definitions: Event, start: str) -> set[str]:
    found, left = set(), [start]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [part.partition('"')[0] for part in json.dumps(definitions[name]).split("#/$defs/")[1:]]
    return found
