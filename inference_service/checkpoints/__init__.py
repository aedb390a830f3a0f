"""Folders of models: where they are, whether they are whole, and how they are read."""
