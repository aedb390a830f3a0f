"""The registry of workers, and the gRPC streams of a session."""
