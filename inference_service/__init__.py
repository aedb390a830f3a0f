"""The gRPC worker: runs a full-duplex speech model for many sessions at once."""
