"""MiniCPM-o 4.5 at its published size: a checkpoint of random weights, and a worker that serves it."""
