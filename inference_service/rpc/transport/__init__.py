"""One gRPC call: who calls, what is read, and the outbox of what is to be written."""
