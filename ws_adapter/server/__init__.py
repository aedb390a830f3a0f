"""Who comes in and what they find: the sockets, the handshake, the pages."""
