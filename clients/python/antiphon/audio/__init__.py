"""Samples: as arrays, as bytes, in WAV files, and sent in real time."""
