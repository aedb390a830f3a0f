"""The gRPC service: calls come in, and requests become what the engine understands."""
