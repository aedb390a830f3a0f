"""What commands hold with a server, and the files that they send."""
