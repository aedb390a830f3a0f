"""One gRPC call: its peer, its input and the outbox of its output."""
