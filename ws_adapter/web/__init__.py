"""HTTP/1.1 and WebSocket connections: requests, routes, frames, TLS."""
