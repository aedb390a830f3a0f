"""Events of Realtime, their fields, and refusals."""
