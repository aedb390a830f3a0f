"""A load generator: conversations in real time, and their latency."""
