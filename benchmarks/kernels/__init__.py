"""What the parts of networks that all sessions share take on the CPU."""
