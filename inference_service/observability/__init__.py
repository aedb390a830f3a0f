"""Metrics, spans, the status page, and the watchdog of the engine."""
