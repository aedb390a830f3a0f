"""Dispatch: a queue of tickets in front of the workers' slots."""
