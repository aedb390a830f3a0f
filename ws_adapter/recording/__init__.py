"""Recordings of public sessions: all events of a connection, as files (docs/recordings.md)."""
