"""Commands for keys and for the usage of tenants."""
