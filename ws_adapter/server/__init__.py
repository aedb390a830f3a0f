"""The public server: sockets, handshake, pages."""
