"""Quality of the default checkpoint's conversations: `make eval`."""
