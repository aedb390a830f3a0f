"""Output of commands: events, failures and colour."""
