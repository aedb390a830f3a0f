"""Cost and output of tracing."""
