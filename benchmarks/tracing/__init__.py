"""Cost of tracing, and the trace of one conversation."""
