"""Cost of the shared queue for its Redis, and the time until a free slot is given."""
