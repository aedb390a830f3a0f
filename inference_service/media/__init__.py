"""Untrusted media decoded to arrays, strictly and within bounds."""
