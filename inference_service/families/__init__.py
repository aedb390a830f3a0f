"""What each architecture brings to the engine, and how the family of a checkpoint is told."""
