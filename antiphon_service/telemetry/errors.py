"""Errors in the settings of telemetry."""


class TelemetryError(Exception):
    """A variable of the environment with an unusable value; the message names it and the remedy."""
