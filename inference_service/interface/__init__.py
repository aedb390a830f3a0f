"""The engine's interface to the gRPC service: plain data, no torch, no gRPC."""
