"""Adapters that share one Redis: who they are, and which clients they have admitted."""
