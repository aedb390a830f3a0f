"""Validation of pictures, recordings and voices from clients, without decoding pixels."""
