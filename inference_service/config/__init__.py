"""What a session may be configured to be, checked against the model."""
