"""Adapters that share one Redis, and the clients that they have admitted."""
