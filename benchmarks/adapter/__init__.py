"""Cost of the adapter, and its behaviour under overload: `make bench`."""
