"""Growth of a worker's memory with the sessions and units it has served."""
