"""What the engine sees of a session of any kind: its units, stages and context."""
