"""The process: clock, memory, open files, load, and start-up errors."""
