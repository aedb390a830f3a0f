"""Errors in the settings of telemetry."""


class TelemetryError(Exception):
    """The error for an unusable environment variable; the message names it and the remedy."""
