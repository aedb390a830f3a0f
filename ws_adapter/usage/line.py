"""A line of the usage log."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

VERSION: Final = 1

Whole = Annotated[int, Meta(ge=0)]


class UsageLine(Struct, frozen=True, kw_only=True):
    """The usage of one session, written at its end: one JSON object on a line, in UTF-8."""

    v: Literal[1] = VERSION
    """Version of this format; later releases may add fields."""
    at: str
    """The end of the session, such as `2030-01-31T18:00:00.000+00:00`."""
    session_id: str
    """The id of the session in logs, recordings and events."""
    key: str | None
    """Name of the key; null without keys."""
    key_id: Annotated[str, Meta(pattern="^[0-9a-f]{12}$")] | None
    """First digits of the hash in the file of keys; null without keys."""
    model: str | None
    """The model of the last slot; null if the session had none."""
    mode: str
    dialect: str
    via: Literal["websocket", "http", "grpc"] | str
    seconds: Annotated[float, Meta(ge=0)]
    """The time in seconds for which the session held slots; each slot counts as at least one second."""
    input_tokens: Whole
    output_tokens: Whole
    reason: str
    """The end reason of the session."""


encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder(UsageLine).decode


def schema() -> dict[str, object]:
    """Return the JSON Schema of a line."""
    return msgspec.json.schema(UsageLine)
