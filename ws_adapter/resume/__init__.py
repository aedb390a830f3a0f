"""Resumable sessions: a session outlives its connection, and a client resumes it with a token."""
