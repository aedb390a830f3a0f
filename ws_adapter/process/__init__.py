"""The process and its machine: clock, memory, open files, load, and failures to start."""
