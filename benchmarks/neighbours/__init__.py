"""Isolation: what eight conversations notice of a noisy neighbour or an attack: `make neighbours`."""
