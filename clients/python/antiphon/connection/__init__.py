"""Connections to a server: its address, pages, refusals, reconnects."""
