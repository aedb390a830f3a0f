"""Families of models: the runtime of each architecture, and the lookup of a checkpoint's family."""
