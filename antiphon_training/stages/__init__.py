"""The stages of training, and what they share."""
