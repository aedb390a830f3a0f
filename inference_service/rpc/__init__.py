"""The gRPC service: server, methods, certificates."""
