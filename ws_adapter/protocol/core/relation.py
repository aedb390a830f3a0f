"""What a client says of the trace that it works in: browsers cannot set the headers that are meant for it."""

from typing import Any, Final

from ws_adapter.protocol.core.actions import Action, Relate

LONGEST: Final = 512
"""Characters of each value; W3C has receivers keep so many of a `tracestate`."""


def related(given: Any) -> list[Action]:
    """What is to be done about a `trace_context`; one that cannot be read costs nothing."""
    if given is None:
        return []
    values = given if isinstance(given, dict) else {}
    return [Relate(_text(values.get("traceparent")), _text(values.get("tracestate")))]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and len(value) <= LONGEST else None
