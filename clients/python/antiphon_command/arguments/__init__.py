"""Arguments of commands: kinds of values, keys, the address of a server."""
