"""Families of models: what each architecture brings to the engine, and how a checkpoint's family is found."""
