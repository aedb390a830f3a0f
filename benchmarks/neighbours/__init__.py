"""Isolation from a noisy neighbour: latency and goodput of conversations under attack: `make neighbours`."""
