"""Cost of a unit of MiniCPM-o: our schedule against the reference's, on random weights."""
