"""HTTP/2 as gRPC needs it, on one event loop: what the adapter's side and the worker's have in common."""
