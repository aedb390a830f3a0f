"""The gRPC calls of a session, put together as one session."""
