"""Errors of loading a model."""


class CheckpointError(Exception):
    """A checkpoint that cannot be loaded; the message says what is wrong with it."""
