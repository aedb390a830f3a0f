"""Video files become pictures and sound, in a process of their own that can do nothing else."""
