"""What a model takes of its device's memory: weights, sessions, and the steps of a tick."""
