"""Access control of HTTP requests, and the requests that make client secrets."""
