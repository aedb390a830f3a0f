"""Isolation under attack: latency and goodput of eight conversations beside attackers: `make neighbours`."""
