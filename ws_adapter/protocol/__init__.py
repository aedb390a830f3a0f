"""What is said with clients, without I/O: frames, signals and times go in, actions come out."""
