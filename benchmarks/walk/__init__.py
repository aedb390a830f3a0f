"""The way of a unit through adapter and worker: which modules it passes, and in which order."""
