"""Transfers to and from the model's device: few copies, however many sessions there are."""
