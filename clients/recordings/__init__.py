"""Spoken questions for the demo and the tests, and how they were made."""
