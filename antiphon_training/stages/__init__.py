"""The stages of training, and their common parts."""
