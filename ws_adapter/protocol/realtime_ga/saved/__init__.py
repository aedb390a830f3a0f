"""The saved state of a Realtime session, from which another adapter continues it."""
