"""What the service asks of an engine and what it is told: plain data, no torch, no gRPC."""
