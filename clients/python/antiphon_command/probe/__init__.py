"""A strict client: it holds one exchange and checks every event against the rules of the protocol."""
