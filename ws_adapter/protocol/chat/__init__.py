"""The turn-based chat protocols."""
