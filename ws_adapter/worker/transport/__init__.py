"""gRPC as a client: channels, calls and TLS to workers, over grpc.aio."""
