"""Many conversations at once, each in real time, and how fast they are answered."""
