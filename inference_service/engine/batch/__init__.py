"""One forward for many sessions: who is in it, their contexts, and how tokens are drawn from it."""
