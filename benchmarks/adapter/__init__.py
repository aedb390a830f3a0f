"""What the adapter costs, and what it does when there is too much: `make bench`."""
