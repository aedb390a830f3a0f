"""What a unit of MiniCPM-o costs: our schedule against the reference's, on random weights."""
