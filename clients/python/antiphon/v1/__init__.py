"""Generated protobuf and gRPC code of `protos/antiphon/v1`; `make protos` renews it."""
