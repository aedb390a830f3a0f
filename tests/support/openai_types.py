"""Holds events of Live against the types of OpenAI's own client."""

from typing import Any, Final

from openai.types.live import ClientEvent, ServerEvent
from pydantic import TypeAdapter, ValidationError

_SIDES: Final[dict[str, TypeAdapter[Any]]] = {
    "ClientEvent": TypeAdapter(ClientEvent),
    "ServerEvent": TypeAdapter(ServerEvent),
}


def fault(side: str, event: Any) -> str | None:
    """What is wrong with an event of one side; None if nothing is."""
    try:
        _SIDES[side].validate_python(event)
    except ValidationError as error:
        return f"not one of the official client: {error}"
    return None
