"""Time of the parts of networks that all sessions share on the CPU."""
