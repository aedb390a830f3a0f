"""Recordings of public sessions: everything that goes over a socket, as files (docs/recordings.md)."""
