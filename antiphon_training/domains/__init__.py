"""Domains: the sentences that people say to a model, its answers, and the held-out split."""
