"""The public protocols without I/O: frames, signals and times go in, actions come out."""
