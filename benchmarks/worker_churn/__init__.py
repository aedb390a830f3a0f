"""How a worker's memory grows with the sessions it has served."""
