"""The gRPC calls of a session, joined into one session."""
