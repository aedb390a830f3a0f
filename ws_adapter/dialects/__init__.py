"""The public protocols: one pure state machine per dialect. No I/O, no event loop, no gRPC."""
