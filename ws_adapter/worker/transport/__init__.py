"""gRPC as a client: calls over HTTP/2 on the adapter's own event loop."""
