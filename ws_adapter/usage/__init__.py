"""Usage of each tenant: seconds, tokens, quotas, and the usage log for billing."""
