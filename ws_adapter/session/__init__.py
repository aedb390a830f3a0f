"""One conversation and what it holds: its socket, its slot, its decoding."""
