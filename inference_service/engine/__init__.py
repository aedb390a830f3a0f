"""The engine: one thread that batches the units of all sessions into packed forwards."""
