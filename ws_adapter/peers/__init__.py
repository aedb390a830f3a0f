"""Adapters that share one Redis, and rate limits over all of them."""
