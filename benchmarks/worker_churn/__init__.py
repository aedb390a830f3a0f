"""Growth of a worker's memory with the number of served sessions and units."""
