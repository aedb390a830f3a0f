"""Hears whether somebody speaks, for all sessions of an adapter."""
