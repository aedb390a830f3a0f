"""Measurements: each prints one table, with the command that repeats it in its docstring."""
