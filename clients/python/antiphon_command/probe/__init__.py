"""A client that takes nothing for granted: it holds one exchange and checks each event by the rules."""
