"""Session configuration, checked against the model."""
