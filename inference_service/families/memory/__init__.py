"""The device memory that a model needs: weights, sessions, and the steps of a tick."""
