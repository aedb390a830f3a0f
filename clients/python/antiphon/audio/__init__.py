"""Audio samples: arrays, bytes, WAV files, devices, pacing in real time."""
