"""What others see: figures, spans, logs of sessions, and the state for status pages."""
