"""Metrics, spans, logs of sessions, and the state for status pages."""
