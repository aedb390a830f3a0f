"""API keys, client secrets, rights and rate limits."""
