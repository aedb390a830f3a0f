"""The duplex architecture as plain modules; no sessions, no gRPC, no JSON protocols."""
