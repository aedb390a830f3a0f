"""A load generator: conversations in real time, and measurements of their latency."""
