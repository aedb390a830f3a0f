"""Conversations of commands with a server, and the files that they send."""
