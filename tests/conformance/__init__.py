"""What the public protocols promise, row by row, held against real processes."""
