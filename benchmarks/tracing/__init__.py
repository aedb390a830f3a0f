"""What tracing costs, and what it shows."""
