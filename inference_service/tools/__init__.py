"""Calls to tools: how models write them, how they are read out of an answer, and how they are enforced."""
