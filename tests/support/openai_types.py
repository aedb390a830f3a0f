"""Checks events of OpenAI's dialects against the types of its own client."""

from functools import cache
from typing import Any, Final, get_args

from openai.types import live, realtime
from openai.types.realtime.response_create_event_with_references_param import (
    ResponseCreateEventWithReferencesParam,
)
from pydantic import TypeAdapter, ValidationError

_SIDES: Final[dict[tuple[str, str], Any]] = {
    ("live", "ClientEvent"): live.ClientEvent,
    ("live", "ServerEvent"): live.ServerEvent,
    ("realtime_ga", "ClientEvent"): realtime.RealtimeClientEvent,
    ("realtime_ga", "ServerEvent"): realtime.RealtimeServerEvent,
    ("transcription_ga", "ClientEvent"): realtime.RealtimeClientEvent,
    ("transcription_ga", "ServerEvent"): realtime.RealtimeServerEvent,
}

_OF_OURS: Final = frozenset({"session.resumed"})
"""Types of events that come only to clients that ask for them, in a way that the official client does not."""


def fault(dialect: str, side: str, event: Any) -> str | None:
    """Return the fault of an event of one side; None if it has none or the dialect is not OpenAI's."""
    if (dialect, side) not in _SIDES or event.get("type") in _OF_OURS:
        return None
    types = _types(dialect, side)
    try:
        # An event without a type of its own is held against all.
        types.get(event.get("type"), types[None]).validate_python(event)
    except ValidationError as error:
        return f"not one of the official client: {error}"
    return None


@cache
def _types(dialect: str, side: str) -> dict[str | None, TypeAdapter[Any]]:
    """By the `type` of their events: a union tries them all, which takes long."""
    union = _SIDES[dialect, side]
    while not (choices := get_args(union)):
        union = union.__value__
    if not all(hasattr(choice, "model_fields") for choice in choices):
        choices = get_args(choices[0])
    adapters: dict[str | None, TypeAdapter[Any]] = {None: TypeAdapter(union)}
    for choice in choices:
        for name in get_args(choice.model_fields["type"].annotation):
            adapters[name] = TypeAdapter(choice)
    if (dialect, side) == ("realtime_ga", "ClientEvent"):
        adapters["response.create"] = TypeAdapter(
            realtime.ResponseCreateEvent | ResponseCreateEventWithReferencesParam
        )
    return adapters
