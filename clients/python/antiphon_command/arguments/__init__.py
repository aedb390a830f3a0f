"""Arguments of commands: types of values, keys, the address of a server."""
