"""The base of all kinds of sessions in the engine: units, stages, context."""
