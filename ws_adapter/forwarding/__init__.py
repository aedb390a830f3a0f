"""Forwarding of returning clients to the adapter that has their session."""
