"""Cost of sampling tokens and speech codes, for all sessions at once and for one after another."""
