"""A check of the environment variables that limit spans, before the SDK reads them.

The SDK raises ValueError for a bad value during its import, so this module does not import the SDK.
"""

import os
from collections.abc import Mapping
from typing import Final

from antiphon_service.telemetry.errors import TelemetryError

SPAN_LIMITS: Final = (
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
)


def check_span_limits(environ: Mapping[str, str] = os.environ) -> None:
    """Raise `TelemetryError` for a span limit that the SDK cannot read."""
    for variable in SPAN_LIMITS:
        text = environ.get(variable, "").strip()
        if text and not text.isdecimal():
            raise TelemetryError(f"{variable} is {text!r}: set it to a whole number from 0, or leave it out.")
