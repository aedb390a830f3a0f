"""Sessions over a WebSocket: input, and events as they arrive."""
