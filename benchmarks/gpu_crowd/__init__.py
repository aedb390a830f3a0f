"""The number of conversations in real time with a full-size MiniCPM-o on a GPU."""
