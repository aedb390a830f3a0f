"""Commands for keys, and for what their tenants use."""
