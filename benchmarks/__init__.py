"""Benchmarks: each docstring names the command that measures and prints the tables."""
