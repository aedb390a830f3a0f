"""Families of models: the runtime of each architecture, and how a checkpoint's family is found."""
