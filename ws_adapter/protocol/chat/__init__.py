"""The turn-based protocols: a request or a turn, and what becomes of it."""
