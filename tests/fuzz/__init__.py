"""Fuzzing of everything that decodes untrusted bytes."""
