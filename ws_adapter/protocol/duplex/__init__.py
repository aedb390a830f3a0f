"""The full-duplex protocols: one state machine, and the vocabulary of each dialect."""
