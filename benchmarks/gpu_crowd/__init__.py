"""Conversations of a full-size MiniCPM-o that a GPU holds."""
