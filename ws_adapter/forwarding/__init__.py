"""Connections of clients that come back at another adapter than the one that has their session."""
