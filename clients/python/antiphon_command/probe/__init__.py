"""A strict client: it runs one exchange and checks every event against the rules of the protocol."""
