"""The path of a unit through adapter and worker: the modules that it passes, in order."""
