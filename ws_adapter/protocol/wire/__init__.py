"""Encoding and decoding of frames, with the errors and limits that all protocols share."""
