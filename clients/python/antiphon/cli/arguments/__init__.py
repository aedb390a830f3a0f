"""How commands read their arguments: kinds of values, keys, the address of a server."""
