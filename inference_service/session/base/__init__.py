"""What all kinds of sessions have in common in the engine: units, stages, context."""
