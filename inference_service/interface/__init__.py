"""The engine's interface towards the service: plain data, no torch, no gRPC."""
