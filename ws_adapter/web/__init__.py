"""HTTP and WebSocket as they come from outside: requests, keys, limits by address."""
