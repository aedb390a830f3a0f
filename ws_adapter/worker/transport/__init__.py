"""gRPC as a client: calls to a worker, by a client of our own or by grpcio."""
