"""Environment variables for the telemetry of the processes under test."""

from collections.abc import Mapping
from typing import Final

NOTHING: Final[Mapping[str, str]] = {"OTEL_SDK_DISABLED": "true"}
"""Neither traces nor metrics."""

METRICS: Final[Mapping[str, str]] = {"OTEL_TRACES_EXPORTER": "none"}
"""The default: metrics and no traces."""


def sampled(endpoint: str, share: float) -> Mapping[str, str]:
    """Return variables for metrics, and for traces of `share` of the sessions to `endpoint`."""
    return {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": f"{share:g}",
    }
