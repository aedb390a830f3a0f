"""Cost of the shared queue for its Redis, and the time from a free slot to its next lease."""
