"""Checkpoints of Moshi and PersonaPlex: published layouts, tokenizers and voices, read as data."""
