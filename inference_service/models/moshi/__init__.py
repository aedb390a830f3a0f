"""Moshi: a temporal transformer, a depth transformer and the codec Mimi, as modules without streams."""
