"""gRPC as a server speaks it, on one event loop: connections, calls, and where it listens."""
