"""OpenTelemetry and logs of the two services: providers, exporters, trace context and the log's format.

Part of the extra `antiphon[telemetry]`; the SDK never imports it.
"""
