"""How well the default checkpoint converses: `make eval`."""
