"""Errors in the settings of telemetry."""


class TelemetryError(Exception):
    """A variable of the environment that cannot be honoured; the message names it and the remedy."""
