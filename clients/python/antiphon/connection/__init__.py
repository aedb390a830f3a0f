"""The address of a server, its pages, and the exceptions of its refusals."""
