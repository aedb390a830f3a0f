"""Clients that vanish in every state."""
