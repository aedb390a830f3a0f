"""The workers: which there are, and a session's streams with one."""
