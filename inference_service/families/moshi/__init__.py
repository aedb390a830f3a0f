"""Moshi and PersonaPlex on a device: conversations frame by frame, 80 ms each."""
