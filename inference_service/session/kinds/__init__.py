"""The kinds of sessions: the state of each, its rules for a unit, and what makes it."""
