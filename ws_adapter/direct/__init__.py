"""Callers who dial workers themselves: the same queue and the same slots, over gRPC."""
