"""Recordings of public sessions: everything that goes over a socket, as files. See docs/recordings.md."""
