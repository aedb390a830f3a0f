"""The kinds of sessions, each with its state and its rules for a unit."""
