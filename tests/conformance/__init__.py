"""Tests of the public protocols' promises, row by row, against real processes."""
