"""What the process has of its machine: its clock, memory, open files and load, and how it fails to start."""
