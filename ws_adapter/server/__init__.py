"""The public server: listeners, handshakes, pages."""
