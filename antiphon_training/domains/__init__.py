"""Domains: what people say to a model, what it answers, and which sentences are held out."""
