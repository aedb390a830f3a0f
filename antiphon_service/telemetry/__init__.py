"""OpenTelemetry and logs of both services: providers, exporters, trace context, log formats.

Part of the extra `antiphon[telemetry]`; the SDK never imports it.
"""
