"""Cost of a unit of MiniCPM-o: the engine's schedule against the reference's, on random weights."""
