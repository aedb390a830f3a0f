"""How a worker's memory grows with the sessions and units it has served."""
