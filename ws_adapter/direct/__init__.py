"""Slots for callers that dial workers over gRPC themselves: same queue, same limits."""
