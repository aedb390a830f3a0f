"""The full-duplex protocols: one state machine, and the words of each."""
