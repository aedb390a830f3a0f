"""One session: its connection, its protocol machine and its slot."""
